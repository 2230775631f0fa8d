//! A full disk, simulated by a limit on the size of files. Writes then fail as on a full disk, but with another error
//! number (EFBIG). If the folder is a small separate file system, that file system is actually filled (ENOSPC).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The environment variable that enables folders in small file systems, which need user namespaces.
pub const TMPFS: &str = "DISTRIBUTE_TEST_TMPFS";

/// The size of the file system: enough for some checkpoints of the small model.
const SIZE: &str = "256k";
const LIMIT: u64 = 100;

/// The disk to which a process writes checkpoints.
pub struct Disk {
    folder: Option<PathBuf>,
    filled: bool,
}

impl Disk {
    /// Creates the disk of a worker. The chief's is a small file system if that is enabled.
    pub fn new(worker: usize, folder: Option<&Path>) -> Self {
        // A process that does not handle this signal is killed by it, as by `kill -9`.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false))).unwrap();
        let folder = folder.map(Path::to_path_buf);
        Self { folder, filled: worker == 0 && std::env::var_os(TMPFS).is_some() }
    }

    fn filler(&self) -> PathBuf {
        self.folder.as_ref().unwrap().join("filler")
    }

    /// Makes the disk full.
    pub fn fill(&self) {
        if !self.filled {
            return limit(Some(LIMIT));
        }
        let mut filler = File::create(self.filler()).unwrap();
        let full = (0..1 << 10).find_map(|_| filler.write_all(&[0; 1 << 10]).err());
        assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    }

    /// Frees the space again.
    pub fn free(&self) {
        if self.filled {
            let _ = fs::remove_file(self.filler());
        } else {
            limit(None);
        }
    }

    /// Returns the names of the files, except the lock.
    pub fn files(&self) -> String {
        let all = fs::read_dir(self.folder.as_ref().unwrap()).unwrap();
        let mut names: Vec<_> = all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != ".lock");
        names.sort();
        names.join(" ")
    }
}

fn limit(bytes: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

/// Returns a command that first mounts a small file system on `folder`, if that is enabled.
pub fn small(command: Command, folder: &Path) -> Command {
    if std::env::var_os(TMPFS).is_none() {
        return command;
    }
    let mount = format!("mount -t tmpfs -o size={SIZE} none \"$1\" && shift && exec \"$@\"");
    let mut small = Command::new("unshare");
    small.args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount, "sh"]).arg(folder);
    small.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => small.env(name, value),
            None => small.env_remove(name),
        };
    }
    small
}
