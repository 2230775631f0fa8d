//! The name by which the processes of a job know each other.

use std::ffi::OsString;
use std::path::PathBuf;

/// Says the name where the program does not.
const NAME: &str = "DISTRIBUTE_JOB";

/// The name of the job of this process: the one that the program gives, or else that of the environment variable `DISTRIBUTE_JOB`, or
/// else that of the program's file. So another program that was given an address of this job is refused even without a secret.
pub fn job_name(given: Option<String>) -> String {
    of(given, |name| std::env::var_os(name), std::env::current_exe().ok())
}

fn of(
    given: Option<String>,
    variable: impl Fn(&str) -> Option<OsString>,
    program: Option<PathBuf>,
) -> String {
    let said = || variable(NAME).filter(|name| !name.is_empty());
    let program = || Some(program?.file_name()?.to_owned());
    let name = given.or_else(|| Some(said().or_else(program)?.to_string_lossy().into_owned()));
    // So Linux calls a file that has been replaced since.
    name.map_or_else(|| "job".into(), |name| name.trim_end_matches(" (deleted)").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_more_than_the_environment_and_that_more_than_the_file() {
        let set = |name: &str| (name == NAME).then(|| "sweep 7".into());
        let file = || Some(PathBuf::from("/jobs/digits (deleted)"));
        assert_eq!(of(Some("mine".into()), set, file()), "mine");
        assert_eq!(of(None, set, file()), "sweep 7");
        assert_eq!(of(None, |_| Some("".into()), file()), "digits");
        assert_eq!(of(None, |_| None, None), "job");
    }
}
