//! Snapshots: all tables on disk, so that the log can begin again.
//!
//! A snapshot consists of a checkpoint for each table, `tables-<n>/0`, `tables-<n>/1`, …, and of its manifest in the
//! folder `snapshot-<n>`, which is written last. `n` is the number of the first record of the log that is not in all
//! checkpoints. For each table, the manifest contains the number of the first record to replay.

use crate::store::changed::TableChanges;
use crate::{OpenError, SnapshotError};
use distribute_checkpoint::{Reader, Writer};
use distribute_files::{Partial, destination_name};
use distribute_optim::RuleSpec;
use distribute_ps_tables::{
    ClientPushes, ClosureChanges, DynamicOptions, DynamicState, ImageContents, Initializer, TableImage,
    TableState, WaitingCounts,
};
use distribute_tensor::{DType, HostTensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The manifest of a snapshot, which lists its tables.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The number of the log's record from which on changes are replayed.
    pub start: u64,
    /// The name of each table, and the number of the first record that is not in its checkpoint.
    pub tables: BTreeMap<String, u64>,
    /// The record of each client: its id, its highest sequence number, and the sequence numbers of its applied changes.
    clients: Vec<(u64, u64, Vec<u64>)>,
    /// The greatest number of a job that has begun.
    pub job: u64,
}

/// The description of a table without its tensors.
#[derive(Debug, Serialize, Deserialize)]
struct TableDescription {
    name: String,
    fingerprint: u64,
    described: String,
    rule: Option<RuleSpec>,
    slots: Vec<String>,
    dynamic: Option<DynamicDescription>,
    steps: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct DynamicDescription {
    row_shape: Vec<usize>,
    dtype: String,
    initializer: Initializer,
    options: DynamicOptions,
    waiting: Vec<WaitingCounts>,
}

/// The prefix of the names of manifests.
const SNAPSHOT: &str = "snapshot-";
/// The prefix of the names of the folders of tables.
const TABLES: &str = "tables-";

/// The name of the tensor that contains the description of a table or the manifest.
const ABOUT: &str = "about";

/// The name of the tensor that contains the changes of closures to the table.
const CLOSURES: &str = "closures";

/// The name of the tensor that describes how values in bf16 are stored, if they are.
const HALVES: &str = "halves";

/// The names of the tensors that contain the changed rows, and the number of the last change of each. The second tensor
/// ends with the number from which on changes are recorded.
const CHANGED: [&str; 2] = ["changed/rows", "changed/numbers"];

impl Manifest {
    pub fn new(start: u64, clients: Vec<ClientPushes>, job: u64) -> Self {
        let of = |ClientPushes { client, highest, applied }| (client, highest, applied);
        Self { start, tables: BTreeMap::new(), clients: clients.into_iter().map(of).collect(), job }
    }

    pub fn clients(&self) -> impl Iterator<Item = ClientPushes> {
        let of = |(client, highest, applied): &(u64, u64, Vec<u64>)| ClientPushes {
            client: *client,
            highest: *highest,
            applied: applied.clone(),
        };
        self.clients.iter().map(of)
    }

    /// Writes the manifest, which completes the snapshot.
    pub fn save(&self, folder: &Path) -> Result<(), SnapshotError> {
        let mut writer = Writer::new();
        writer.insert(ABOUT, pack(self, "manifest", "all tables")?)?;
        writer.metadata("tables", self.tables.len() as u64);
        Ok(writer.save(manifest_path(folder, self.start), 1)?)
    }

    /// Reads the manifest of the newest snapshot of a folder; `None` if there is no snapshot.
    pub fn newest(folder: &Path) -> Result<Option<Self>, OpenError> {
        let Some(start) = numbered(folder, SNAPSHOT)?.into_iter().max() else { return Ok(None) };
        let path = manifest_path(folder, start);
        let wrong = |reason: String| OpenError::Snapshot { path: path.clone(), reason };
        let reader = Reader::open(&path).map_err(|error| wrong(error.to_string()))?;
        let manifest: Self = unpack(&reader).map_err(wrong)?;
        Ok(Some(manifest))
    }
}

pub(crate) fn manifest_path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("{SNAPSHOT}{start:020}"))
}

fn tables_path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("{TABLES}{start:020}"))
}

/// Returns whether the snapshot with number `start` exists.
pub(crate) fn exists(folder: &Path, start: u64) -> bool {
    manifest_path(folder, start).exists()
}

/// Creates the folder for a snapshot's tables. Removes that of an unfinished snapshot first.
pub(crate) fn begin(folder: &Path, start: u64) -> Result<(), SnapshotError> {
    let path = tables_path(folder, start);
    if path.exists() {
        fs::remove_dir_all(&path).map_err(SnapshotError::io("removing", &path))?;
    }
    distribute_files::create_private_folder(&path).map_err(SnapshotError::io("making", &path))
}

/// Writes the table with index `i` of a snapshot.
pub(crate) fn save_table(
    folder: &Path,
    (start, i): (u64, usize),
    image: TableImage,
    changed: Option<TableChanges>,
) -> Result<(), SnapshotError> {
    let TableImage { name, fingerprint, described, rule, contents, halves, steps, closures } = image;
    let mut writer = Writer::new();
    let mut slot_names = Vec::new();
    let mut put = |prefix: String,
                   values: HostTensor,
                   slots: Vec<(String, HostTensor)>,
                   writer: &mut Writer| {
        writer.insert(format!("{prefix}values"), values)?;
        slot_names = slots.iter().map(|(name, _)| name.clone()).collect();
        slots.into_iter().try_for_each(|(name, slot)| writer.insert(format!("{prefix}slots/{name}"), slot))
    };
    let dynamic = match contents {
        ImageContents::Dense(TableState { values, slots, .. }) => {
            put(String::new(), values, slots, &mut writer)?;
            None
        }
        ImageContents::Dynamic { row_shape, dtype, initializer, options, parts } => {
            let mut waiting = Vec::new();
            for (part, (DynamicState { ids, used, values, slots }, counts)) in parts.into_iter().enumerate() {
                waiting.push(counts);
                writer.insert(format!("{part}/ids"), HostTensor::vector(ids))?;
                writer.insert(format!("{part}/used"), HostTensor::vector(used))?;
                put(format!("{part}/"), values, slots, &mut writer)?;
            }
            Some(DynamicDescription {
                row_shape,
                dtype: dtype.name().to_owned(),
                initializer,
                options,
                waiting,
            })
        }
    };
    writer.metadata("name", name.clone());
    let about = TableDescription {
        name: name.clone(),
        fingerprint,
        described,
        rule,
        slots: slot_names,
        dynamic,
        steps,
    };
    writer.insert(ABOUT, pack(&about, "description", &name)?)?;
    writer.insert(CLOSURES, HostTensor::vector(closures.to_numbers()))?;
    if let Some(halves) = halves {
        writer.insert(HALVES, pack(&halves, "storage in bf16", &name)?)?;
    }
    if let Some(TableChanges { begun, rows, .. }) = changed {
        let (rows, mut numbers): (Vec<i64>, Vec<u64>) = rows.into_iter().unzip();
        numbers.push(begun);
        writer.insert(CHANGED[0], HostTensor::vector(rows))?;
        writer.insert(CHANGED[1], HostTensor::vector(numbers))?;
    }
    Ok(writer.save(tables_path(folder, start).join(i.to_string()), 1)?)
}

/// Reads the table with index `i` of a snapshot, which must have the given name.
pub(crate) fn load_table(
    folder: &Path,
    (start, i): (u64, usize),
    name: &str,
) -> Result<(TableImage, Option<TableChanges>), OpenError> {
    let path = tables_path(folder, start).join(i.to_string());
    let loaded = load(&path).and_then(|(image, changed)| {
        if image.name == name {
            Ok((image, changed))
        } else {
            Err(format!("it is table {}, but {name} was expected", image.name))
        }
    });
    loaded.map_err(|reason| OpenError::Snapshot { path, reason })
}

fn load(path: &Path) -> Result<(TableImage, Option<TableChanges>), String> {
    let reader = Reader::open(path).map_err(|error| error.to_string())?;
    let TableDescription { name, fingerprint, described, rule, slots, dynamic, steps } = unpack(&reader)?;
    let tensor = |name: String| reader.tensor(&name).map_err(|error| error.to_string());
    let slots_of = |prefix: &str| -> Result<Vec<_>, String> {
        slots.iter().map(|slot| Ok((slot.clone(), tensor(format!("{prefix}slots/{slot}"))?))).collect()
    };
    let contents = match dynamic {
        None => ImageContents::Dense(TableState {
            version: 0,
            values: tensor("values".to_owned())?,
            slots: slots_of("")?,
        }),
        Some(DynamicDescription { row_shape, dtype, initializer, options, waiting }) => {
            let dtype: DType = dtype.parse().map_err(|error| format!("{error}"))?;
            let mut parts = Vec::new();
            for (part, counts) in waiting.into_iter().enumerate() {
                let list = |error: distribute_tensor::Error| error.to_string();
                let state = DynamicState {
                    ids: tensor(format!("{part}/ids"))?.into_vec().map_err(list)?,
                    used: tensor(format!("{part}/used"))?.into_vec().map_err(list)?,
                    values: tensor(format!("{part}/values"))?,
                    slots: slots_of(&format!("{part}/"))?,
                };
                parts.push((state, counts));
            }
            ImageContents::Dynamic { row_shape, dtype, initializer, options, parts }
        }
    };
    let closures = ClosureChanges::from_numbers(tensor(CLOSURES.to_owned())?.as_slice().unwrap_or_default())
        .ok_or_else(|| format!("{CLOSURES} cannot be read"))?;
    let changed = if reader.contains(CHANGED[0]) {
        let [rows, numbers] = CHANGED.map(|name| tensor(name.to_owned()));
        let (rows, numbers) = (rows?, numbers?);
        let lists = rows.as_slice::<i64>().zip(numbers.as_slice::<u64>().and_then(<[u64]>::split_last));
        let lists = lists.filter(|(rows, (_, numbers))| rows.len() == numbers.len());
        let (rows, (begun, numbers)) = lists.ok_or_else(|| format!("{} cannot be read", CHANGED[0]))?;
        let rows = rows.iter().copied().zip(numbers.iter().copied()).collect();
        Some(TableChanges::new(*begun, rows, rule.as_ref()))
    } else {
        None
    };
    let halves = reader.contains(HALVES).then(|| unpack_from(&reader, HALVES)).transpose()?;
    let image = TableImage { name, fingerprint, described, rule, contents, halves, steps, closures };
    Ok((image, changed))
}

/// Removes the files of all snapshots except the one with number `start`, including unfinished ones.
pub(crate) fn remove_others(folder: &Path, start: Option<u64>) -> Result<(), OpenError> {
    for name in names(folder)? {
        if destination_name(&name).is_some_and(|name| name.starts_with(SNAPSHOT)) {
            Partial::clear_folder(&folder.join(name));
        }
    }
    for (prefix, path) in [(SNAPSHOT, manifest_path as fn(&Path, u64) -> PathBuf), (TABLES, tables_path)] {
        for number in numbered(folder, prefix)?.into_iter().filter(|number| Some(*number) != start) {
            let path = path(folder, number);
            fs::remove_dir_all(&path).map_err(OpenError::io("removing", path))?;
        }
    }
    Ok(())
}

/// Returns the numbers in the names of a folder's entries that begin with `prefix`.
fn numbered(folder: &Path, prefix: &str) -> Result<Vec<u64>, OpenError> {
    let number = |name: &OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
    Ok(names(folder)?.iter().filter_map(number).collect())
}

fn names(folder: &Path) -> Result<Vec<OsString>, OpenError> {
    let entries = fs::read_dir(folder).map_err(OpenError::io("reading", folder))?;
    entries.map(|entry| Ok(entry.map_err(OpenError::io("reading", folder))?.file_name())).collect()
}

fn pack(what: &impl Serialize, kind: &'static str, name: &str) -> Result<HostTensor, SnapshotError> {
    let bytes =
        postcard::to_stdvec(what).map_err(|_| SnapshotError::Head { what: kind, name: name.to_owned() })?;
    Ok(HostTensor::vector(bytes))
}

fn unpack<T: DeserializeOwned>(reader: &Reader) -> Result<T, String> {
    unpack_from(reader, ABOUT)
}

fn unpack_from<T: DeserializeOwned>(reader: &Reader, tensor: &str) -> Result<T, String> {
    let bytes = reader.tensor(tensor).map_err(|error| error.to_string())?;
    let bytes = bytes.as_slice::<u8>().unwrap_or_default();
    postcard::from_bytes(bytes)
        .map_err(|_| "its description cannot be decoded: was it written by another version?".to_owned())
}
