//! `distribute export`: writes the changed rows of variables to files in a folder.

use crate::output::{line, remark};
use distribute::cluster::{ClusterSpec, Job, Task};
use distribute::net::Credentials;
use distribute::{Error, Result};
use distribute_ps_server::{Connection, TableExport};
use distribute_ps_tables::{
    Channel, ChannelError, PartitionStrategy, Request, Response, RowLocation, RowPartition, TableInfo,
    TableKind, variable_of,
};
use distribute_rpc::ClientBuilder;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes the changed rows of variables to files; the first file of a table has all rows. Runs until it is interrupted,
/// and later runs continue after the newest files
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
    /// The maximum number of seconds for one request, including reconnecting to a server that restarts
    #[arg(long, default_value_t = 600., value_name = "SECONDS")]
    timeout: f64,
    /// Export once, and exit, with an error if a variable could not be exported
    #[arg(long)]
    once: bool,
    /// Write all rows, not only those that have changed, to each file whose number is a multiple of N; 0 for none but
    /// the first. New readers begin with such a file, and files before it can be removed
    #[arg(long, default_value_t = 0, value_name = "N")]
    complete_every: u64,
    /// The rows of variables with several parts are partitioned round-robin (PartitionStrategy::Mod)
    #[arg(long)]
    modulo: bool,
}

/// The way in which the rows of a table are numbered in its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// Rows are numbered by their ids.
    Own,
    /// Rows are numbered as in the complete variable. The table is the part with this index.
    Part(RowPartition, usize),
}

/// A table that is exported, with the numbering of its rows.
struct Source {
    ids: Ids,
    export: TableExport,
}

/// The index of a server and the name of a table on it.
type Key = (usize, String);

/// The tables that are exported, and the latest failure that was printed for each.
#[derive(Default)]
struct Exports {
    sources: BTreeMap<Key, Source>,
    remarks: BTreeMap<Key, String>,
    /// Whether something has failed in this pass.
    has_failed: bool,
}

impl Exports {
    /// Records a failure of a table, and prints it unless it is the one that was printed last for this table.
    fn fail(&mut self, key: Key, text: String) {
        self.has_failed = true;
        if self.remarks.get(&key) != Some(&text) {
            remark(format!("distribute export: {text}"));
            self.remarks.insert(key, text);
        }
    }
}

/// Exports repeatedly until the process is interrupted, or one time with `--once`. Failures that may pass are printed,
/// and the export is tried again.
///
/// # Errors
/// Returns an error if an option is invalid, if a server cannot be reached and a retry would not help, or if the output
/// cannot be written. With `--once`, also if anything was not exported.
pub fn run(arguments: &Arguments) -> Result<()> {
    let cluster = ClusterSpec::from_lists([("ps", &arguments.servers)])?;
    let clients =
        ClientBuilder::new(cluster, Task::new("export", 0)).credentials(Credentials::new().any_job());
    let servers: Vec<_> =
        (0..arguments.servers.len()).map(|i| Connection::new(clients.clone(), Job::Ps.task(i))).collect();
    let every = seconds("--every", arguments.every)?;
    let timeout = seconds("--timeout", arguments.timeout)?;
    let mut exports = Exports::default();
    loop {
        exports.has_failed = false;
        // Variables may be created or removed later.
        let found = list(&servers, timeout).map(|tables| find(arguments, &tables, &mut exports));
        match found {
            Ok(keys) => export(&servers, keys, timeout, &mut exports)?,
            // A retry would not help.
            Err((_, error @ ChannelError::Unreachable { .. })) => return Err(Error::Other(error.into())),
            Err((server, error)) => exports.fail((server, String::new()), error.to_string()),
        }
        if arguments.once {
            let failed = || Error::Other("export: not everything is exported: the reasons are above".into());
            return if exports.has_failed { Err(failed()) } else { Ok(()) };
        }
        std::thread::park_timeout(every);
    }
}

/// Converts the number of seconds in `option` to a duration.
fn seconds(option: &str, number: f64) -> Result<Duration> {
    let text = || format!("{option} is a number of seconds, at least 0");
    Duration::try_from_secs_f64(number).map_err(|_| Error::Other(text().into()))
}

/// Lists the variables' tables on all servers, each with the index of its server. Names that begin with `~` are not
/// variables.
fn list(servers: &[Connection], timeout: Duration) -> Result<Vec<(usize, TableInfo)>, (usize, ChannelError)> {
    let mut all = Vec::new();
    for (server, connection) in servers.iter().enumerate() {
        let response = connection.call(Request::List, timeout).map_err(|error| (server, error))?;
        let Response::Tables(tables) = response else { continue };
        let is_variable = |table: &TableInfo| !table.name.starts_with('~');
        all.extend(tables.into_iter().filter(is_variable).map(|table| (server, table)));
    }
    Ok(all)
}

/// Writes the changed rows of the tables `keys` to files.
fn export(servers: &[Connection], keys: Vec<Key>, timeout: Duration, exports: &mut Exports) -> Result<()> {
    for key in keys {
        let Some(Source { ids, export }) = exports.sources.get_mut(&key) else { continue };
        let ids = *ids;
        let id = |row| match ids {
            Ids::Part(partition, shard) => partition.row(RowLocation { shard, row: row as usize }) as i64,
            Ids::Own => row,
        };
        match export.export(&servers[key.0], &key.1, id, timeout) {
            Ok(file) => {
                exports.remarks.remove(&key);
                let Some(file) = file else { continue };
                let kind = if file.complete { "all rows" } else { "changed rows" };
                line(format!("{} {} {kind}", file.path.display(), file.rows))?;
            }
            // Other tables may be exported, and this one later.
            Err(error) => exports.fail(key, error.to_string()),
        }
    }
    Ok(())
}

/// Opens the folders of new tables, and forgets tables that were removed. Returns the keys of the tables to export.
fn find(arguments: &Arguments, tables: &[(usize, TableInfo)], exports: &mut Exports) -> Vec<Key> {
    let listed: BTreeSet<Key> = tables.iter().map(|(server, table)| (*server, table.name.clone())).collect();
    exports.sources.retain(|key, _| listed.contains(key));
    exports.remarks.retain(|key, _| listed.contains(key));
    let strategy = if arguments.modulo { PartitionStrategy::Mod } else { PartitionStrategy::Div };
    let parts = parts(tables);
    let mut keys = Vec::new();
    for (server, table) in tables {
        let key = (*server, table.name.clone());
        let (variable, _) = variable_of(&table.name);
        let is_named = arguments.variables.iter().any(|name| name == variable);
        // A variable that is not named is not missed if it cannot be exported.
        let is_wanted = is_named || arguments.variables.is_empty() && TableExport::supports(table.dtype);
        if !is_wanted {
            continue;
        }
        let ids = match ids(table, &parts, strategy) {
            Ok(ids) => ids,
            Err(text) => {
                exports.fail(key, text);
                continue;
            }
        };
        match exports.sources.get_mut(&key) {
            Some(source) if source.ids == ids => {}
            Some(source) => {
                source.ids = ids;
                source.export.start_over();
            }
            None => match TableExport::open(path(&arguments.folder, &table.name)) {
                Ok(export) => {
                    let export = export.complete_every(arguments.complete_every);
                    exports.sources.insert(key.clone(), Source { ids, export });
                }
                Err(error) => {
                    exports.fail(key, error.to_string());
                    continue;
                }
            },
        }
        keys.push(key);
    }
    keys
}

/// Returns the index of each part and the number of its rows, in ascending order, for each variable that has parts.
fn parts(tables: &[(usize, TableInfo)]) -> BTreeMap<&str, Vec<(usize, usize)>> {
    let mut all: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (_, table) in tables {
        if let (variable, Some(part)) = variable_of(&table.name) {
            all.entry(variable).or_default().push((part, table.rows));
        }
    }
    all.values_mut().for_each(|parts| parts.sort_unstable());
    all
}

/// Returns the numbering of a table's rows.
///
/// # Errors
/// Returns a message if parts of the table's variable are missing, or have other sizes than in the partition.
fn ids(
    table: &TableInfo,
    parts: &BTreeMap<&str, Vec<(usize, usize)>>,
    strategy: PartitionStrategy,
) -> Result<Ids, String> {
    let (variable, part) = variable_of(&table.name);
    let part = match (table.kind, part) {
        (TableKind::Dynamic, _) => return Ok(Ids::Own),
        (TableKind::Dense, None) => return Ok(Ids::Part(RowPartition::div(table.rows, 1), 0)),
        (TableKind::Dense, Some(part)) => part,
    };
    let parts = parts.get(variable).map(Vec::as_slice).unwrap_or_default();
    let partition = RowPartition::new(strategy, parts.iter().map(|(_, rows)| rows).sum(), parts.len());
    let fits = parts.iter().enumerate().all(|(i, (part, rows))| i == *part && partition.len(i) == *rows);
    let texts = || parts.iter().map(|(part, rows)| format!("part {part} of {rows} rows")).collect::<Vec<_>>();
    let text = || {
        format!(
            "variable {variable} is not exported: the servers have {}, which are not all of its parts, or not \
             evenly divided; --servers needs all servers",
            texts().join(", ")
        )
    };
    if fits { Ok(Ids::Part(partition, part)) } else { Err(text()) }
}

/// Returns the folder of a table. Each component of its name is a folder, and characters that are not letters, digits,
/// `-` or `_` are replaced by `%` and two hexadecimal digits for each byte. An empty component is `%`.
fn path(folder: &Path, table: &str) -> PathBuf {
    let escaped = |component: &str| -> String {
        if component.is_empty() {
            return "%".to_owned();
        }
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
    use distribute_tensor::DType;

    #[test]
    fn folders_of_tables_are_inside_of_the_exports_folder() {
        for (table, expected) in
            [("words/part_1", "out/words/part_1"), ("../a b", "out/%2e%2e/a%20b"), ("é", "out/%c3%a9")]
                .into_iter()
                .chain([
                    ("a//b", "out/a/%/b"),
                    ("a/b/", "out/a/b/%"),
                    ("/", "out/%/%"),
                    (".lock", "out/%2elock"),
                ])
        {
            assert_eq!(path(Path::new("out"), table), Path::new(expected));
        }
    }

    #[test]
    fn rows_of_a_variable_are_numbered_only_when_all_of_its_parts_are_there() {
        let table = |name: &str, rows| TableInfo {
            name: name.to_owned(),
            kind: TableKind::Dense,
            shape: vec![rows, 2],
            dtype: DType::F32,
            rows,
            parts: 0,
            bytes: 0,
            rule: None,
            reads: Default::default(),
        };
        let of = |tables: &[TableInfo], strategy| {
            let all: Vec<_> = tables.iter().cloned().enumerate().collect();
            let parts = parts(&all);
            all.iter().map(|(_, table)| ids(table, &parts, strategy)).collect::<Vec<_>>()
        };
        for strategy in [PartitionStrategy::Div, PartitionStrategy::Mod] {
            let partition = RowPartition::new(strategy, 5, 2);
            let all = of(&[table("w/part_1", 2), table("w", 9), table("w/part_0", 3)], strategy);
            let whole = Ids::Part(RowPartition::div(9, 1), 0);
            assert_eq!(all, [Ok(Ids::Part(partition, 1)), Ok(whole), Ok(Ids::Part(partition, 0))]);
            // It is being created, or was created again with other rows, or is on two servers.
            for broken in [
                vec![table("w/part_1", 2)],
                vec![table("w/part_0", 3), table("w/part_1", 4)],
                vec![table("w/part_0", 3), table("w/part_2", 2)],
                vec![table("w/part_0", 3), table("w/part_0", 3)],
            ] {
                let error = of(&broken, strategy).remove(0).unwrap_err();
                assert!(error.starts_with("variable w is not exported: the servers have part "), "{error}");
            }
        }
        let ids = TableInfo { kind: TableKind::Dynamic, ..table("ids/part_1", 7) };
        assert_eq!(of(&[ids], PartitionStrategy::Div), [Ok(Ids::Own)]);
    }
}
