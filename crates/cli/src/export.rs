//! `distribute export`: the rows of variables that have changed, as files in a folder.

use crate::output::line;
use distribute::cluster::{ClusterSpec, Job, Task};
use distribute::net::Credentials;
use distribute::{Error, Result};
use distribute_ps_server::{Connection, ExportError, TableExport};
use distribute_ps_tables::{
    Channel, PartitionStrategy, Request, Response, RowLocation, RowPartition, TableInfo, TableKind,
};
use distribute_rpc::ClientBuilder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum time for the rows of one table, lost connections included.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Writes the rows of variables that have changed to files, all rows at first. It runs until it is interrupted, and
/// later runs continue after the newest files
#[derive(clap::Args)]
pub struct Arguments {
    /// The addresses of all parameter servers, in the order of their indices
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…", required = true)]
    servers: Vec<String>,
    /// The folder for the files, which are in a subfolder for each table
    #[arg(long)]
    folder: PathBuf,
    /// A variable to export; all by default
    #[arg(long = "variable")]
    variables: Vec<String>,
    /// The seconds between two requests
    #[arg(long, default_value_t = 0.2)]
    every: f64,
    /// Export once, and exit
    #[arg(long)]
    once: bool,
    /// The rows of variables with several parts are partitioned round-robin (PartitionStrategy::Mod)
    #[arg(long)]
    modulo: bool,
}

/// A table to export.
struct Source {
    server: usize,
    table: String,
    /// The partition of its variable, and the index of its part; `None` if rows have ids.
    part: Option<(RowPartition, usize)>,
    export: TableExport,
}

/// Exports until the process is interrupted, or once.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cluster = ClusterSpec::from_lists([("ps", &arguments.servers)])?;
    let clients =
        ClientBuilder::new(cluster, Task::new("export", 0)).credentials(Credentials::new().any_job());
    let servers: Vec<_> =
        (0..arguments.servers.len()).map(|i| Connection::new(clients.clone(), Job::Ps.task(i))).collect();
    let every = Duration::try_from_secs_f64(arguments.every);
    let every = every.map_err(|_| Error::Other("--every is a number of seconds, at least 0".into()))?;
    let mut sources = BTreeMap::new();
    loop {
        // Variables may be created later.
        find(arguments, &servers, &mut sources)?;
        for source in sources.values_mut() {
            let Source { server, table, part, export } = source;
            let part = *part;
            let id = |row| match part {
                Some((partition, shard)) => partition.row(RowLocation { shard, row: row as usize }) as i64,
                None => row,
            };
            let exported = export.export(&servers[*server], table, id, TIMEOUT).map_err(failed)?;
            if let Some(file) = exported {
                let kind = if file.complete { "all rows" } else { "changed rows" };
                line(format!("{} {} {kind}", file.path.display(), file.rows))?;
            }
        }
        if arguments.once {
            return Ok(());
        }
        std::thread::park_timeout(every);
    }
}

fn failed(error: ExportError) -> Error {
    Error::Other(error.into())
}

/// Adds the tables that are not exported yet.
fn find(
    arguments: &Arguments,
    servers: &[Connection],
    sources: &mut BTreeMap<(usize, String), Source>,
) -> Result<()> {
    let mut all: Vec<(usize, TableInfo)> = Vec::new();
    for (server, connection) in servers.iter().enumerate() {
        let tables = connection.call(Request::List, TIMEOUT).map_err(|error| Error::Other(error.into()))?;
        let Response::Tables(tables) = tables else { continue };
        all.extend(
            tables.into_iter().filter(|table| !table.name.starts_with('~')).map(|table| (server, table)),
        );
    }
    let rows_of = |variable: &str| -> (usize, usize) {
        let parts = all.iter().filter(|(_, table)| variable_of(&table.name).0 == variable);
        parts.fold((0, 0), |(rows, parts), (_, table)| (rows + table.rows, parts + 1))
    };
    for (server, table) in &all {
        let key = (*server, table.name.clone());
        let (variable, part) = variable_of(&table.name);
        let is_wanted =
            arguments.variables.is_empty() || arguments.variables.iter().any(|name| name == variable);
        if sources.contains_key(&key) || !is_wanted {
            continue;
        }
        let strategy = if arguments.modulo { PartitionStrategy::Mod } else { PartitionStrategy::Div };
        let (rows, parts) = rows_of(variable);
        let part = match table.kind {
            TableKind::Dynamic => None,
            TableKind::Dense => Some((RowPartition::new(strategy, rows, parts), part.unwrap_or(0))),
        };
        let export = TableExport::open(path(&arguments.folder, &table.name)).map_err(failed)?;
        sources.insert(key, Source { server: *server, table: table.name.clone(), part, export });
    }
    Ok(())
}

/// Returns the name of the variable of a table, and the index of its part if it has several.
fn variable_of(table: &str) -> (&str, Option<usize>) {
    let part = table.rsplit_once("/part_").and_then(|(name, part)| Some((name, part.parse().ok()?)));
    part.map_or((table, None), |(name, part)| (name, Some(part)))
}

/// Returns the folder of a table. Each component of its name is a folder, and characters that are not letters, digits,
/// `-` or `_` are replaced by `%` and two hexadecimal digits for each byte.
fn path(folder: &Path, table: &str) -> PathBuf {
    let escaped = |component: &str| -> String {
        component
            .bytes()
            .map(|byte| match byte {
                b'-' | b'_' => char::from(byte).to_string(),
                byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                byte => format!("%{byte:02x}"),
            })
            .collect()
    };
    table.split('/').fold(folder.to_path_buf(), |path, component| path.join(escaped(component)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_tables_are_inside_of_the_exports_folder() {
        for (table, expected) in
            [("words/part_1", "out/words/part_1"), ("../a b", "out/%2e%2e/a%20b"), ("é", "out/%c3%a9")]
        {
            assert_eq!(path(Path::new("out"), table), Path::new(expected));
        }
        assert_eq!((variable_of("w"), variable_of("w/part_3")), (("w", None), ("w", Some(3))));
    }
}
