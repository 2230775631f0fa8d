//! The search for the command of a task, before anything is started.

use crate::{Error, Result, Task};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Finds the file of a command as a shell does. If `command` contains a slash, it is relative to `folder`; otherwise
/// the folders of `path` are searched. `task` is named in errors. Returns an error if `command` is empty, if there is
/// no such file, or if the file cannot be executed.
pub(crate) fn find(command: &OsStr, folder: &Path, path: &OsStr, task: &Task) -> Result<PathBuf> {
    let shown = command.to_string_lossy().into_owned();
    let not_found = |problem| Error::CommandNotFound { task: task.clone(), command: shown.clone(), problem };
    if command.is_empty() {
        return Err(Error::NoCommand);
    }
    if command.as_encoded_bytes().contains(&b'/') {
        let file = folder.join(command);
        return match file.metadata() {
            Ok(_) if can_run(&file) => Ok(file),
            Ok(_) => Err(not_found(format!("{} cannot be executed", file.display()))),
            Err(error) => Err(not_found(format!("{}: {error}", file.display()))),
        };
    }
    let found =
        std::env::split_paths(path).map(|entry| folder.join(entry).join(command)).find(|file| can_run(file));
    found.ok_or_else(|| {
        not_found("it is not in a folder of PATH; for a program in this folder, prefix it with ./".into())
    })
}

fn can_run(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn problem(command: &str, folder: &str, path: &str) -> String {
        find(command.as_ref(), folder.as_ref(), path.as_ref(), &Job::Worker.task(0)).unwrap_err().to_string()
    }

    #[test]
    fn commands_are_found_as_the_shell_does() {
        let task = Job::Worker.task(0);
        let found = |command: &str, folder: &str, path: &str| {
            find(command.as_ref(), folder.as_ref(), path.as_ref(), &task).unwrap()
        };
        assert_eq!(found("sh", "/", "/none:/bin"), Path::new("/bin/sh"));
        assert_eq!(found("bin/sh", "/", ""), Path::new("/bin/sh"));
        assert_eq!(found("/bin/sh", "/tmp", ""), Path::new("/bin/sh"));
    }

    #[test]
    fn a_missing_command_is_named_with_its_task() {
        let text = problem("sch", "/", "/bin:/usr/bin");
        assert!(text.starts_with("worker 0: no command \"sch\": ") && text.contains("PATH"), "{text}");
        let text = problem("./sch", "/tmp", "/bin");
        assert!(text.contains("/tmp/./sch: No such file"), "{text}");
        assert!(problem("/etc/passwd", "/", "").contains("cannot be executed"));
        assert!(problem("/bin", "/", "").contains("cannot be executed"));
        assert!(problem("", "/", "").contains("after --"));
    }
}
