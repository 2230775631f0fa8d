//! Custom strategies that contradict themselves: they are rejected when they are created or first used.

use distribute::strategy::{DeviceName, Replicas, StrategyExtended};
use distribute::{Error, ReduceOp, Result, Strategy};
use distribute_collective::group::{Group, Links, local};
use distribute_testing::watched;

/// A mistake that the author of a strategy may make.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Nothing,
    ADeviceTwice,
    AGroupOfOthers,
    RunTwice,
    RunTwiceUnnoticed,
    NotRun,
}

#[derive(Debug)]
struct Own {
    wrong: Wrong,
    group: Option<Group>,
}

impl Own {
    fn new(wrong: Wrong) -> Self {
        // Each worker of this group has 3 replicas, but there are devices for 2.
        let group = matches!(wrong, Wrong::AGroupOfOthers)
            .then(|| local::groups(Links::Memory, 2, 3).unwrap().remove(0));
        Self { wrong, group }
    }
}

impl StrategyExtended for Own {
    fn kind(&self) -> &'static str {
        "Own"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        const TWO: &[DeviceName] = &[DeviceName::cpu(0), DeviceName::cpu(1)];
        const TWICE: &[DeviceName] = &[DeviceName::cpu(1), DeviceName::cpu(1)];
        if matches!(self.wrong, Wrong::ADeviceTwice) { TWICE } else { TWO }
    }
    fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }
    fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> Result<()> {
        match self.wrong {
            Wrong::NotRun => Ok(()),
            Wrong::RunTwice => replicas.on_threads().and_then(|()| replicas.on_threads()),
            Wrong::RunTwiceUnnoticed => {
                replicas.on_threads()?;
                let _ = replicas.on_threads();
                Ok(())
            }
            _ => replicas.on_threads(),
        }
    }
}

fn assert_message(error: &Error, texts: &[&str]) {
    assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
    for text in texts {
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
}

#[test]
fn a_strategy_that_contradicts_itself_is_refused_where_it_is_made() {
    for (wrong, texts) in [
        (Wrong::ADeviceTwice, ["Strategy::new: Own names", "CPU:1 twice in worker_devices"]),
        (Wrong::AGroupOfOthers, ["2 worker_devices", "worker 0 of 2, 3 replicas each"]),
    ] {
        assert_message(&Strategy::new(Own::new(wrong)).unwrap_err(), &texts);
    }
    Strategy::new(Own::new(Wrong::Nothing)).unwrap();
}

#[test]
fn a_step_whose_replicas_run_twice_or_not_at_all_is_an_error() {
    watched(|| {
        let run = |wrong| {
            let strategy = Strategy::new(Own::new(wrong)).unwrap();
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))
        };
        assert_message(
            &run(Wrong::RunTwice).unwrap_err(),
            &["Replicas::on_threads", "twice in step 1", "Own (2 replicas"],
        );
        assert_message(&run(Wrong::NotRun).unwrap_err(), &["did not call the closure"]);
        // If the author ignores the error, the results of the first call are returned.
        assert_eq!(run(Wrong::RunTwiceUnnoticed).unwrap().values(), [2., 2.]);
    });
}
