//! The name by which the processes of a job recognize each other.

use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable with the name of the job.
const NAME: &str = "DISTRIBUTE_JOB";

/// Returns the name of this process's job: the value of the environment variable `DISTRIBUTE_JOB` or, if that is not
/// set or empty, the file name of the program. A different program that connects to an address of this job by mistake
/// is therefore rejected, even without a secret.
pub fn job_name() -> String {
    job_name_from(std::env::var_os(NAME), std::env::current_exe().ok())
}

fn job_name_from(variable: Option<OsString>, program: Option<PathBuf>) -> String {
    let program = || Some(program?.file_name()?.to_owned());
    let name = variable.filter(|name| !name.is_empty()).or_else(program);
    let name = name.map_or_else(|| "job".into(), |name| name.to_string_lossy().into_owned());
    // Linux appends this to the name of a file that has been replaced or removed.
    name.trim_end_matches(" (deleted)").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_counts_more_than_the_file() {
        let file = || Some(PathBuf::from("/jobs/digits (deleted)"));
        assert_eq!(job_name_from(Some("sweep 7".into()), file()), "sweep 7");
        assert_eq!(job_name_from(Some("".into()), file()), "digits");
        assert_eq!(job_name_from(None, file()), "digits");
        assert_eq!(job_name_from(None, None), "job");
    }
}
