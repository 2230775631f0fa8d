//! The thread that initializes and finalizes MPI, and makes its calls while no other thread waits for messages.
//!
//! Only this thread calls `MPI_Init_thread` and `MPI_Finalize`, which wait for all processes, so that other
//! threads can wait for it with a deadline.

use crate::library::Library;
use crate::links::Links;
use crate::state::State;
use crate::{Error, Settings};
use bytes::Bytes;
use distribute_cluster::environment::ProcessEnvironment;
use distribute_cluster::{Deadline, Stopwatch, World, fnv1a, resolver};
use distribute_collective::group::{Group, Inbox};
use distribute_log::{info_or_stderr, warn_or_stderr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

/// The way in which the process leaves the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Gracefully: it waits for the others while they are connected, as MPI requires.
    Well,
    /// After a failure: the others may hang, so the wait is limited to [`Settings::shutdown_timeout`].
    Failed,
}

/// A report of the thread.
pub(crate) enum Report {
    /// All processes have joined, or joining has failed with the error.
    Joined(Result<Group, Error>),
    /// No more bytes will be sent or received. MPI is still finalized if all others have left gracefully.
    Over,
    /// MPI was finalized, or will not be. The thread exits.
    Done,
}

/// Runs the thread: joins the other processes, calls MPI until this process and the others have left, and finalizes MPI
/// if all others have left gracefully. Sends a report after each of these stages. Returns after the first one if
/// joining fails.
pub(crate) fn run(settings: Settings, orders: &Receiver<Ending>, reports: &Sender<Report>) {
    // If the receiver was dropped, the process is about to exit.
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
        _ => warn_or_stderr(|| {
            tracing::warn!(
                "this process exits without MPI_Finalize, which would wait for {}; mpirun stops the others",
                workers(&missing)
            );
        }),
    }
    report(Report::Done);
}

/// Sends and receives until this process has been told to leave, and all others have exited or are disconnected. After
/// a failure, it ends after the shutdown timeout at the latest.
fn until_over(links: &Links, settings: Settings, orders: &Receiver<Ending>) {
    let mut ending = None;
    let mut is_told = false;
    loop {
        if ending.is_none() {
            ending = match orders.try_recv() {
                Ok(how) => Some((how, Deadline::after(settings.shutdown_timeout))),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    Some((Ending::Failed, Deadline::after(settings.shutdown_timeout)))
                }
            };
        }
        let (is_over, missing) = links.turn_in_the_background(|state| (state.is_over(), state.missing()));
        match &mut ending {
            Some(_) if is_over => return,
            Some((how, deadline)) => {
                deadline.look();
                match how {
                    Ending::Failed if deadline.has_passed() => return,
                    Ending::Well if deadline.has_passed() && !is_told => {
                        is_told = true;
                        info_or_stderr(|| {
                            tracing::info!(
                                "this process has finished, and MPI waits for {}",
                                workers(&missing)
                            )
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

/// Initializes MPI, and joins all processes into a group. If all processes have found that they cannot join, MPI is
/// finalized before the error is returned.
fn join(settings: Settings) -> Result<(Group, Arc<Links>), Error> {
    let watch = Stopwatch::start();
    let mut library = Library::start()?;
    let (rank, workers) = (library.rank(), library.workers());
    let agreed =
        agree(&mut library, settings).and_then(|()| Ok(World::new(workers, rank, settings.replicas)?));
    let world = match agreed {
        Ok(world) => world,
        // All processes have the same error.
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
    info_or_stderr(|| {
        tracing::info!("{world}: {all} replicas in sync, over MPI; all have joined after {seconds:.1} s");
    });
    Ok((Group::new(world, links.clone(), inbox), links))
}

/// The size in bytes of the record that all workers compare: it must be the same on all of them.
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
