//! The thread that begins and ends MPI, and moves bytes while nobody waits for them.
//!
//! It alone calls what waits for all processes, `MPI_Init_thread` and `MPI_Finalize`, so that those who wait for it have a deadline.

use crate::library::Library;
use crate::links::Links;
use crate::state::State;
use crate::{Error, Settings};
use bytes::Bytes;
use distribute_cluster::environment::ProcessEnvironment;
use distribute_cluster::{Deadline, Stopwatch, World, fnv1a, resolver};
use distribute_collective::group::{Group, Inbox};
use distribute_log::{heard, told};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It waits for the others as long as they live, as MPI demands.
    Well,
    /// It has failed: the others may be stuck, and are waited for no longer than a farewell takes.
    Failed,
}

/// What the thread says.
pub(crate) enum Report {
    /// All processes have come, or why not.
    Joined(Result<Group, Error>),
    /// Nothing is sent or received any more: what follows is `MPI_Finalize`, if anything.
    Over,
    /// It ends.
    Done,
}

/// All that the thread does.
pub(crate) fn run(settings: Settings, orders: &Receiver<Ending>, reports: &Sender<Report>) {
    // Where nobody listens any more, the process is about to end.
    let report = |report| drop(reports.send(report));
    let links = match join(settings) {
        Ok((group, links)) => {
            report(Report::Joined(Ok(group)));
            links
        }
        Err(error) => return report(Report::Joined(Err(error))),
    };
    until_over(&links, settings, orders);
    let (missing, library) = {
        let mut state = links.state();
        (state.missing(), state.take_library())
    };
    report(Report::Over);
    match library {
        Some(library) if missing.is_empty() => library.finalize(),
        _ => heard(|| {
            tracing::warn!(
                "this process ends without MPI_Finalize, which would wait for {}: mpirun ends the others",
                workers(&missing)
            );
        }),
    }
    report(Report::Done);
}

/// Moves bytes, until this process ends and all others have ended or are lost.
fn until_over(links: &Links, settings: Settings, orders: &Receiver<Ending>) {
    let mut ending = None;
    let mut is_told = false;
    loop {
        if ending.is_none() {
            ending = match orders.try_recv() {
                Ok(how) => Some((how, Deadline::after(settings.farewell))),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some((Ending::Failed, Deadline::after(settings.farewell))),
            };
        }
        let (is_over, missing) = links.turn_in_the_background(|state| (state.is_over(), state.missing()));
        match &mut ending {
            Some(_) if is_over => return,
            Some((how, farewell)) => {
                farewell.look();
                match how {
                    Ending::Failed if farewell.has_passed() => return,
                    Ending::Well if farewell.has_passed() && !is_told => {
                        is_told = true;
                        told(|| {
                            tracing::info!("this process has ended, and MPI waits for {}", workers(&missing))
                        });
                    }
                    _ => {}
                }
            }
            None => {}
        }
    }
}

fn workers(all: &[usize]) -> String {
    let all: Vec<_> = all.iter().map(|worker| format!("worker {worker}")).collect();
    all.join(", ")
}

/// Brings all processes together.
fn join(settings: Settings) -> Result<(Group, Arc<Links>), Error> {
    let watch = Stopwatch::start();
    let mut library = Library::start()?;
    let (rank, workers) = (library.rank(), library.workers());
    let agreed =
        agree(&mut library, settings).and_then(|()| Ok(World::new(workers, rank, settings.replicas)?));
    let world = match agreed {
        Ok(world) => world,
        // All have got this error.
        Err(error @ (Error::Alone { .. } | Error::Replicas { .. } | Error::Version { .. })) => {
            library.finalize();
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    let inbox = Inbox::new(workers);
    let state = State::new(library, Arc::new(inbox.clone()), settings);
    let links = Arc::new(Links::new(state, rank, workers));
    let (all, seconds) = (world.num_replicas_in_sync(), watch.elapsed().as_secs_f64());
    told(|| {
        tracing::info!("{world}: {all} replicas in sync, over MPI; all have joined after {seconds:.1} s");
    });
    Ok((Group::new(world, links.clone(), inbox), links))
}

/// What all have to have alike.
const RECORD: usize = 2 * size_of::<u64>();

fn agree(library: &mut Library, settings: Settings) -> Result<(), Error> {
    if library.workers() == 1
        && let Some(scheduler) = resolver::detect(&ProcessEnvironment)
    {
        return Err(Error::Alone { scheduler });
    }
    let version = fnv1a(env!("CARGO_PKG_VERSION").bytes());
    let mine = [settings.replicas as u64, version].map(u64::to_ne_bytes).concat();
    let mut gathering = library.gather(Bytes::from(mine))?;
    let mut deadline = Deadline::after(settings.join);
    while !library.test(&mut gathering)? {
        deadline.look();
        if deadline.has_passed() {
            return Err(Error::Deadline { waited: settings.join });
        }
        std::thread::yield_now();
    }
    let all = gathering.received().unwrap_or_default();
    let records = all.chunks_exact(RECORD).map(|record| {
        let (replicas, version) = record.split_at(RECORD / 2);
        [replicas, version].map(|bytes| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
    });
    let [first, version] = records.clone().next().unwrap_or_default();
    for (worker, [replicas, other]) in records.enumerate() {
        if replicas != first {
            return Err(Error::Replicas { worker, replicas, first });
        }
        if other != version {
            return Err(Error::Version { worker });
        }
    }
    Ok(())
}
