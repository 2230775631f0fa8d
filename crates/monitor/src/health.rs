//! The health of a process for probes, as pure functions of its report.

use crate::Report;

/// The age of the latest report, in seconds, at which the process counts as hung. Reports are requested twice a second,
/// and wait for parameter servers for at most 0.3 s each.
const HUNG: f64 = 60.;

/// The age of the latest report, in seconds, at which the job no longer counts as ready.
const STALE: f64 = 10.;

/// Checks that the latest report is not too old. A process that waits for other processes still makes reports.
///
/// # Errors
/// Returns the reason if the process is hung, so that a restart may help.
pub(crate) fn alive(report: &Report) -> Result<(), String> {
    if report.age >= HUNG {
        return Err(format!("no report for {:.0} s", report.age));
    }
    Ok(())
}

/// Checks that the job is ready as this process sees it: the latest report is recent, the process has found the others,
/// and no worker is lost. A coordinator is ready until all of its workers are lost.
///
/// # Errors
/// Returns the reason if the job is not ready. The reason contains no names of the job, because any machine may ask.
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
