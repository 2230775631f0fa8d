//! Changes that closures make to a table, each applied at most once.

use crate::{ClosureChanges, Origin, Result};
use parking_lot::{Mutex, MutexGuard};

/// The number of locks for executions of closures, which are assigned by the closure's number. Few of the closures that
/// run at the same time share a lock.
const ORDERS: usize = 64;

/// A [`ClosureChanges`] for use by several threads.
#[derive(Debug)]
pub(super) struct ExactlyOnce {
    changes: Mutex<ClosureChanges>,
    /// The locks that keep two executions of one closure from changing the table at the same time: the second waits for
    /// the first, and then checks whether the change was applied. Changes of other closures are applied concurrently.
    orders: Box<[Mutex<()>; ORDERS]>,
}

impl ExactlyOnce {
    pub fn new(changes: ClosureChanges) -> Self {
        Self { changes: Mutex::new(changes), orders: Box::new([const { Mutex::new(()) }; ORDERS]) }
    }

    // INV-59
    /// Applies a change, or returns `None` if it was already applied.
    ///
    /// # Errors
    /// Returns the errors of [`ClosureChanges::has`] and of `change`. If `change` fails, it counts as not applied.
    pub fn apply<T>(
        &self,
        origin: Origin,
        number: u64,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let _order = self.orders[(origin.closure % ORDERS as u64) as usize].lock();
        let was_applied = self.changes.lock().has(origin, number)?;
        let applied = if was_applied { None } else { Some(change()?) };
        self.changes.lock().record(origin, number);
        Ok(applied)
    }

    /// Begins a job, after which only closures of this job may change the table. Changes of the previous job that are
    /// in progress are completed first; later ones are rejected. Does nothing if a job with the same or a greater
    /// number has begun.
    pub fn begin(&self, job: u64) {
        let _all: Vec<MutexGuard<'_, ()>> = self.orders.iter().map(|order| order.lock()).collect();
        self.changes.lock().begin(job);
    }

    /// Returns a copy of the record of changes.
    pub fn changes(&self) -> ClosureChanges {
        self.changes.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Channel, Contents, DynamicOptions, Error, Initializer, LocalChannel, Origin, Push, PushResult,
        Refusal, RefusalKind, Request, Response, TableSpec, Tables,
    };
    use distribute_optim::{RuleSpec, Sgd, Step};
    use distribute_tensor::random::Distribution;
    use distribute_tensor::{DType, HostTensor, Write};
    use distribute_testing::watched;
    use std::sync::Arc;
    use std::time::Duration;

    fn exactly_once(closure: u64, floor: u64, number: u64, change: Request) -> Request {
        Request::Once { origin: Origin { job: 0, closure, floor }, number, change: Box::new(change) }
    }

    fn add(value: HostTensor) -> Request {
        Request::Write { table: "n".into(), how: Write::Add, value }
    }

    fn counter() -> Tables {
        let tables = Tables::new();
        tables.handle(&Request::Create(TableSpec::values("n", HostTensor::scalar(0i64)))).unwrap();
        tables
    }

    fn counted(tables: &Tables) -> i64 {
        match tables.handle(&Request::ReadRows { table: "n".into(), rows: vec![0] }).unwrap() {
            Response::Rows(rows) => rows.to_vec::<i64>().unwrap()[0],
            other => panic!("{other:?}"),
        }
    }

    // INV-59
    #[test]
    fn a_change_of_a_closure_is_made_once_and_one_that_was_refused_may_come_again() {
        let tables = counter();
        let count =
            |closure, number| tables.handle(&exactly_once(closure, 0, number, add(HostTensor::scalar(1i64))));
        let misfit = exactly_once(0, 0, 0, add(HostTensor::scalar(1f32)));
        assert!(tables.handle(&misfit).is_err());
        for _ in 0..3 {
            for (closure, number) in [(0, 0), (0, 1), (1, 0)] {
                count(closure, number).unwrap();
            }
        }
        assert_eq!(counted(&tables), 3);
        // Invalid changes are also answered if they were made before.
        assert_eq!(tables.handle(&misfit).unwrap(), Response::Done);
        let initializer = Initializer::new(Distribution::Constant(1.), 7, "ids");
        let options = DynamicOptions::default();
        let contents = Contents::Dynamic { row_shape: vec![1], dtype: DType::F32, initializer, options };
        let rule = Some(RuleSpec::Sgd(Sgd));
        let ids = Request::Create(TableSpec { name: "ids".into(), contents, rule, rounding: None });
        tables.handle(&ids).unwrap();
        let change = |rows: Vec<i64>| {
            let gradient = HostTensor::new(vec![1f32; rows.len()], [rows.len(), 1]).unwrap();
            let push = Push::at(Step::after(0, 0.5));
            exactly_once(0, 0, 0, Request::PushRows { table: "ids".into(), push, rows, gradient })
        };
        let Response::Pushed(pushed) = tables.handle(&change(vec![5])).unwrap() else { panic!("not pushed") };
        assert_eq!(pushed.created, 1);
        // The second execution has other rows, but it is the same push.
        assert_eq!(tables.handle(&change(vec![6])).unwrap(), Response::Pushed(PushResult::default()));
        // A table that is created again has no record of earlier changes.
        tables.handle(&Request::Remove { table: "n".into() }).unwrap();
        assert!(matches!(count(0, 0), Err(Error::NoSuchTable { .. })));
        tables.handle(&Request::Create(TableSpec::values("n", HostTensor::scalar(0i64)))).unwrap();
        count(0, 0).unwrap();
        assert_eq!(counted(&tables), 1);
        for wrong in [Request::List, Request::Remove { table: "n".into() }, Request::Batch(vec![]), ids] {
            let error = tables.handle(&exactly_once(0, 0, 0, wrong)).unwrap_err();
            assert!(matches!(error, Error::NotOnce { .. }), "{error}");
        }
    }

    // INV-59
    #[test]
    fn who_was_replaced_changes_nothing_any_more() {
        let tables = counter();
        let begin = |job| tables.handle(&Request::BeginJob { job }).unwrap();
        let count = |job, closure, floor| {
            let origin = Origin { job, closure, floor };
            let change = Box::new(add(HostTensor::scalar(1i64)));
            let answer = tables.handle(&Request::Once { origin, number: 0, change });
            answer.map_err(|error| Refusal::from(error).kind)
        };
        assert_eq!(count(0, 5, 0), Ok(Response::Done));
        assert_eq!(count(7, 5, 0), Err(RefusalKind::Stale));
        assert_eq!(begin(7), Response::Job { newest: 7 });
        assert_eq!(begin(3), Response::Job { newest: 7 });
        assert_eq!([0, 3].map(|job| count(job, 6, 0)), [Err(RefusalKind::Stale), Err(RefusalKind::Stale)]);
        // The closures of the new job have other numbers, and other floors.
        assert_eq!(count(7, 5, 4), Ok(Response::Done));
        assert_eq!(count(7, 3, 0), Err(RefusalKind::Stale));
        // The same holds for a table that is created afterwards, and for one that another server restores.
        let created = TableSpec::values("m", HostTensor::scalar(0i64));
        tables.handle(&Request::Create(created)).unwrap();
        assert_eq!(tables.image("m").unwrap().unwrap().closures.job(), 7);
        let other = Tables::new();
        other.restore_image(tables.image("n").unwrap().unwrap()).unwrap();
        let again = Request::Once {
            origin: Origin { job: 7, closure: 5, floor: 4 },
            number: 0,
            change: Box::new(add(HostTensor::scalar(1i64))),
        };
        other.handle(&again).unwrap();
        assert_eq!((counted(&tables), counted(&other)), (2, 2));
        tables.clear();
        assert_eq!(tables.job(), 0);
    }

    // INV-59
    #[test]
    fn no_job_takes_all_numbers_from_those_after_it() {
        let tables = counter();
        let begin = |job| tables.handle(&Request::BeginJob { job }).map_err(Refusal::from);
        let turn = |turn: u64| turn << 32;
        for job in [u64::MAX, u64::MAX - 1, turn(1 << 17)] {
            let refusal = begin(job).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Argument);
            assert!(refusal.text.contains("is too far ahead of 0"), "{refusal}");
        }
        assert_eq!(tables.job(), 0);
        // A job that has begun on other servers, for example after this one came back without its tables.
        assert_eq!(begin(turn(900) + 7), Ok(Response::Job { newest: turn(900) + 7 }));
        assert_eq!(begin(turn(901)), Ok(Response::Job { newest: turn(901) }));
        tables.restore_job(u64::MAX);
        assert_eq!(begin(0), Ok(Response::Job { newest: u64::MAX }));
    }

    // INV-59
    #[test]
    fn executions_of_closures_at_once_make_each_change_once() {
        watched(|| {
            let tables = Arc::new(counter());
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let channel = LocalChannel::new(0, tables.clone());
                    std::thread::spawn(move || {
                        for closure in 0..500 {
                            let both =
                                [0, 1].map(|n| exactly_once(closure, 0, n, add(HostTensor::scalar(1i64))));
                            channel.call(Request::Batch(both.into()), Duration::from_secs(60)).unwrap();
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(counted(&tables), 1000);
        });
    }
}
