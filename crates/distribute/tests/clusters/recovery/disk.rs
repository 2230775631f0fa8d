//! A disk without room, without one: a limit on the size of files, at which a write fails as on a full disk, but with
//! another number (EFBIG). Where the folder is a small file system of its own, it is really filled (ENOSPC).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Set where folders are small file systems, which takes user namespaces.
pub const TMPFS: &str = "DISTRIBUTE_TEST_TMPFS";

/// Room for some checkpoints of the small model, and for nothing in which a file begins.
const SIZE: &str = "256k";
const LIMIT: u64 = 100;

/// The disk that a process writes checkpoints to.
pub struct Disk {
    folder: Option<PathBuf>,
    filled: bool,
}

impl Disk {
    /// That of this worker. The chief's is a small one where that is asked for.
    pub fn new(worker: usize, folder: Option<&Path>) -> Self {
        // A process that does not handle this signal is killed by it, as by `kill -9`.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false))).unwrap();
        let folder = folder.map(Path::to_path_buf);
        Self { folder, filled: worker == 0 && std::env::var_os(TMPFS).is_some() }
    }

    fn filler(&self) -> PathBuf {
        self.folder.as_ref().unwrap().join("filler")
    }

    /// From now on there is no room.
    pub fn fill(&self) {
        if !self.filled {
            return limit(Some(LIMIT));
        }
        let mut filler = File::create(self.filler()).unwrap();
        let full = (0..1 << 10).find_map(|_| filler.write_all(&[0; 1 << 10]).err());
        assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    }

    /// There is room again.
    pub fn free(&self) {
        if self.filled {
            let _ = fs::remove_file(self.filler());
        } else {
            limit(None);
        }
    }

    /// The names of what is there, but for the lock.
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

/// Has the command see a small file system of its own in `folder`, where that is asked for.
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
