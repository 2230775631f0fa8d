//! Running a case, and the check of its outcome.

use super::case::{Case, Expect, Inputs, Run, Stop};
use super::compare::compare;
use super::differences::difference;
use super::errors::Kind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

/// The result of a case.
pub enum Verdict {
    Passed,
    /// The outcome differs from TensorFlow's on purpose, by the rule of this name.
    Difference(&'static str),
    Failed(String),
}

/// The time limit of a case. A case that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a case on its own thread, so that the runner survives a hang, a panic and a context that is left open.
pub fn compare_case(case: Case, run: Option<Run>) -> Verdict {
    let Some(run) = run else { return Verdict::Failed(format!("no runner for the area {:?}", case.area)) };
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let verdict = catch_unwind(AssertUnwindSafe(|| decide(&case, run)));
        let _ = sender.send(verdict.unwrap_or_else(|_| Verdict::Failed("panicked".into())));
    });
    receiver.recv_timeout(LIMIT).unwrap_or_else(|_| Verdict::Failed(format!("no outcome in {LIMIT:?}")))
}

fn decide(case: &Case, run: Run) -> Verdict {
    let inputs = Inputs::new(&case.inputs);
    let ran = match run(case, &inputs) {
        Err(Stop::Runner(why)) => return Verdict::Failed(why),
        Err(Stop::Library(error)) => Err(error),
        Ok(outcome) => Ok(outcome),
    };
    if let Err(why) = inputs.finish() {
        return Verdict::Failed(why);
    }
    let (want, tolerance, verdict) = match difference(case) {
        Err(why) => return Verdict::Failed(why),
        Ok(None) => (case.expect.clone(), case.tolerance, Verdict::Passed),
        Ok(Some(other)) => {
            (other.expect, other.tolerance.unwrap_or(case.tolerance), Verdict::Difference(other.rule))
        }
    };
    let checked = match (&ran, &want) {
        (Ok(got), Expect::Outcome(want)) => match want.as_object() {
            Some(fields) => fields.iter().try_for_each(|(name, want)| match got.get(name) {
                Some(got) => compare(name, got, want, tolerance),
                None => Err(format!("the runner gives no {name:?}")),
            }),
            None => Err("expect is no object".into()),
        },
        (Err(got), Expect::Error(want)) => match (Kind::of_error(got), Kind::of_type(want)) {
            (_, None) => Err(format!("unknown type of error {want:?}")),
            (got, want) if got == want => Ok(()),
            (kind, want) => Err(format!("got {kind:?} ({got}), want {want:?}")),
        },
        (Ok(got), Expect::Error(want)) => Err(format!("got {got}, want {want}")),
        (Err(got), Expect::Outcome(want)) => Err(format!("got the error {got}, want {want}")),
    };
    match (checked, verdict) {
        (Ok(()), verdict) => verdict,
        (Err(why), Verdict::Difference(rule)) => Verdict::Failed(format!("difference {rule}: {why}")),
        (Err(why), _) => Verdict::Failed(why),
    }
}
