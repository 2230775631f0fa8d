//! `distribute repair`: lists the damage in the folder of a parameter server, and removes it from the log.

use crate::output::line;
use distribute::{Error, Result};
use distribute_ps_server::inspect;
use std::path::{Path, PathBuf};

/// Lists the damage in the folders of parameter servers that are not running, and the changes that were lost. Changes
/// nothing without --apply
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder of a server, such as ps/ps-0, or the folder of all servers on this machine
    folder: PathBuf,
    /// Remove the damage from the logs. The original files are kept in set-aside/
    #[arg(long)]
    apply: bool,
}

/// Prints the damage, and repairs it with `--apply`. Exits with code 1 if a server cannot start in one of the folders.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut is_healthy = true;
    for folder in folders(&arguments.folder) {
        is_healthy &= one(&folder, arguments.apply)?;
    }
    if !is_healthy {
        std::process::exit(1);
    }
    Ok(())
}

/// Inspects one folder, and prints the damage. If `apply` is `true`, also repairs it. Returns `true` if a server can
/// then start in the folder.
fn one(folder: &Path, apply: bool) -> Result<bool> {
    let found = match inspect(folder) {
        Ok(found) => found,
        Err(error) => {
            line(format!("{}: {error}", folder.display()))?;
            return Ok(false);
        }
    };
    line(found.to_string())?;
    if found.damage().is_empty() {
        return Ok(true);
    }
    if !apply {
        line(format!(
            "  Nothing was changed. To continue without these changes: distribute repair --apply {}",
            folder.display()
        ))?;
        return Ok(false);
    }
    let kept = found.repair().map_err(|error| Error::Other(error.into()))?;
    for path in kept {
        line(format!("  kept as it was: {}", path.display()))?;
    }
    let found = inspect(folder).map_err(|error| Error::Other(error.into()))?;
    line(found.to_string())?;
    Ok(found.damage().is_empty())
}

/// Returns the folders of all servers in `folder`, or `folder` itself if it contains none.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("ps-")?.parse::<u64>().ok();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut servers: Vec<(u64, PathBuf)> = entries.filter_map(|path| Some((number(&path)?, path))).collect();
    servers.sort();
    if servers.is_empty() {
        return vec![folder.to_path_buf()];
    }
    servers.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_server::{ParameterServer, ServerOptions};
    use std::fs;

    #[test]
    fn damaged_records_are_shown_and_omitted_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let servers = ["ps-0", "ps-10"].map(|server| folder.path().join(server));
        fs::create_dir(folder.path().join("notes")).unwrap();
        for server in servers.iter().rev() {
            drop(ParameterServer::open(ServerOptions::new(server)).unwrap());
        }
        assert_eq!(folders(folder.path()), servers);
        assert_eq!(folders(&servers[0]), servers[..1]);
        let name = format!("changes-{:020}.log", 0);
        let log = servers[0].join(&name);
        let damaged = [&fs::read(&log).unwrap()[..], &[9; 100]].concat();
        fs::write(&log, &damaged).unwrap();
        assert!(!one(&servers[0], false).unwrap() && one(&servers[1], false).unwrap());
        assert_eq!(fs::read(&log).unwrap(), damaged);
        assert!(one(&servers[0], true).unwrap() && one(&servers[0], false).unwrap());
        assert_eq!(fs::read(servers[0].join("set-aside").join(name)).unwrap(), damaged);
        drop(ParameterServer::open(ServerOptions::new(&servers[0])).unwrap());
        assert!(!one(&folder.path().join("notes"), true).unwrap());
    }
}
