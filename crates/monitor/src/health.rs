//! The health of a process, as probes ask for it; pure functions of its report.

use crate::Report;

/// The age of a report in seconds from which the process hangs. A report is made twice a second and waits for nothing
/// longer than a parameter server's 0.3 s.
const HUNG: f64 = 60.;

/// The age of a report in seconds from which nothing is known.
const STALE: f64 = 10.;

/// Checks that the process is alive, so that a restart would not help. A process that waits for others is alive.
///
/// Returns the reason if it is not.
pub(crate) fn alive(report: &Report) -> Result<(), String> {
    if report.age >= HUNG {
        return Err(format!("no report for {:.0} s", report.age));
    }
    Ok(())
}

/// Checks that the job is complete as this process sees it: it has found the others, and no worker is lost.
///
/// Returns the reason if it is not. Names of the job are not part of it, because any machine may ask.
pub(crate) fn ready(report: &Report) -> Result<(), String> {
    if report.strategy.is_empty() || report.age >= STALE {
        return Err(format!("no report for {:.0} s", report.age));
    }
    let (all, lost) = match &report.coordinator {
        Some(coordinator) => (coordinator.workers.len(), coordinator.away()),
        None => (
            report.world.workers.len(),
            report.world.workers.iter().filter(|worker| worker.away.is_some()).count(),
        ),
    };
    // A coordinator continues with the workers that it has.
    if lost > 0 && (report.coordinator.is_none() || lost == all) {
        return Err(format!("{lost} of {all} workers are lost"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::busy;

    #[test]
    fn a_process_hangs_if_it_reports_nothing_for_a_minute() {
        let of = |age| alive(&Report { age, ..busy() });
        assert_eq!(of(59.), Ok(()));
        assert_eq!(of(60.), Err("no report for 60 s".into()));
        // While it joins the others, nothing was reported yet.
        assert_eq!(alive(&Report { age: 30., ..Report::default() }), Ok(()));
    }

    #[test]
    fn a_job_is_ready_with_all_of_its_workers() {
        let mut job = Report { coordinator: None, ..busy() };
        assert_eq!(ready(&job), Ok(()));
        job.world.workers[1].away = Some("the connection to 10.0.0.7 was lost".into());
        assert_eq!(ready(&job), Err("1 of 2 workers are lost".into()));
        assert_eq!(ready(&Report { age: 3., ..Report::default() }), Err("no report for 3 s".into()));
        assert_eq!(ready(&Report { age: 11., ..busy() }), Err("no report for 11 s".into()));
    }

    #[test]
    fn a_coordinator_is_ready_with_one_worker() {
        let mut job = busy();
        assert_eq!(ready(&job), Ok(()));
        for worker in &mut job.coordinator.as_mut().unwrap().workers {
            worker.away = Some("lost".into());
        }
        assert_eq!(ready(&job), Err("2 of 2 workers are lost".into()));
    }
}
