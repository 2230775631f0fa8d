//! The index of a bundle: the location, dtype and shape of each tensor, checked against the sizes of the files.

use crate::damage::{damaged, io_error, open};
use crate::proto;
use crate::slice_key::slice_key;
use crate::slices::{Region, count, require_cover};
use crate::table::Table;
use distribute_checkpoint::{Error, Result};
use distribute_tensor::DType;
use prost::Message;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version of the format that this crate reads.
const VERSION: i32 = 1;

/// The maximum size of an index in bytes. An index has about a hundred bytes for each tensor or slice.
const MAX_INDEX: u64 = 1 << 30;

/// The maximum rank of a tensor in TensorFlow.
const MAX_RANK: usize = 254;

/// The index of a checkpoint in TensorFlow's bundle format: all tensors, and the locations of their elements.
#[derive(Debug)]
pub(crate) struct Bundle {
    /// The path of the index.
    pub(crate) index: PathBuf,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// A tensor, and the locations of its elements.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    /// The dtype, or TensorFlow's number of a dtype that is not supported.
    pub(crate) dtype: Result<DType, i32>,
    pub(crate) shape: Vec<usize>,
    /// The pieces with its elements: a single piece, or one for each slice.
    pub(crate) pieces: Vec<Piece>,
}

/// The bytes of a tensor or slice in a file.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) region: Region,
    pub(crate) file: Arc<Path>,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    /// The masked CRC-32C of the bytes, with the lengths of strings as integers of fixed size.
    pub(crate) crc: u32,
}

/// An entry of the index, and its offset in the index.
struct Found {
    entry: proto::Entry,
    at: u64,
}

/// The data files of a bundle, which contain the elements, and their sizes.
struct Shards {
    paths: Vec<Arc<Path>>,
    lens: Vec<u64>,
}

impl Bundle {
    /// Reads the index of the bundle whose files begin with `prefix`.
    pub(crate) fn open(prefix: &Path) -> Result<Self> {
        let index = with_suffix(prefix, ".index");
        let mut bytes = Vec::new();
        let file = open(&index)?;
        let size = file.metadata().map_err(io_error("reading", &index))?.len();
        if size > MAX_INDEX {
            return Err(damaged(&index, 0, format!("{size} bytes, more than the limit of {MAX_INDEX}")));
        }
        file.take(MAX_INDEX).read_to_end(&mut bytes).map_err(io_error("reading", &index))?;
        let (mut shards, mut found, mut slices) = (None, BTreeMap::new(), BTreeMap::new());
        Table::new(&index, &bytes).each(|key, value, at| {
            let wrong = |error: prost::DecodeError| damaged(&index, at, error.to_string());
            if shards.is_none() {
                if !key.is_empty() {
                    return Err(damaged(&index, at, "the index doesn't begin with a header"));
                }
                let header = proto::Header::decode(value).map_err(wrong)?;
                shards = Some(Shards::new(&header, prefix, &index, at)?);
                return Ok(());
            }
            let entry = proto::Entry::decode(value).map_err(wrong)?;
            if key.first() == Some(&0) {
                slices.insert(key.to_vec(), Found { entry, at });
                return Ok(());
            }
            let name = str::from_utf8(key).map_err(|error| damaged(&index, at, error.to_string()))?;
            found.insert(name.to_string(), Found { entry, at });
            Ok(())
        })?;
        let shards = shards.ok_or_else(|| damaged(&index, 0, "the index is empty, without a header"))?;
        let mut tensors = BTreeMap::new();
        for (name, found) in found {
            let tensor = tensor(&name, &found, &slices, &shards, &index)?;
            tensors.insert(name, tensor);
        }
        Ok(Self { index, tensors })
    }
}

impl Shards {
    /// Checks the header, and finds all data files.
    fn new(header: &proto::Header, prefix: &Path, index: &Path, at: u64) -> Result<Self> {
        let version = header.version.clone().unwrap_or_default();
        if header.endianness != 0 || version.min_consumer > VERSION {
            let order = if header.endianness == 0 { "little" } else { "big" };
            return Err(Error::Version {
                path: index.to_path_buf(),
                found: format!("a {order}-endian bundle for readers of version {}", version.min_consumer),
                expected: format!("little-endian ones of versions 0 to {VERSION}"),
            });
        }
        let count = usize::try_from(header.num_shards).ok().filter(|count| *count > 0);
        let count = count
            .ok_or_else(|| damaged(index, at, format!("the number of files is {}", header.num_shards)))?;
        let mut shards = Self { paths: Vec::new(), lens: Vec::new() };
        for shard in 0..count {
            let path = with_suffix(prefix, &format!(".data-{shard:05}-of-{count:05}"));
            let len = open(&path)?.metadata().map_err(io_error("reading", &path))?.len();
            shards.paths.push(path.into());
            shards.lens.push(len);
        }
        Ok(shards)
    }

    /// Returns the location of the elements of `region`, as the entry describes it. Checks that the file has these
    /// bytes.
    fn piece(&self, found: &Found, region: Region, index: &Path) -> Result<Piece> {
        let Found { entry, at } = found;
        let wrong = |reason: String| damaged(index, *at, reason);
        let shard = usize::try_from(entry.shard_id).ok();
        let shard = shard.and_then(|shard| Some((self.paths.get(shard)?, *self.lens.get(shard)?)));
        let (file, len) = shard
            .ok_or_else(|| wrong(format!("there is no file {} of {}", entry.shard_id, self.paths.len())))?;
        let range = (u64::try_from(entry.offset).ok()).zip(u64::try_from(entry.size).ok());
        let range = range.and_then(|(offset, size)| Some((offset, size, offset.checked_add(size)?)));
        let (offset, size, end) =
            range.ok_or_else(|| wrong(format!("{} bytes at {} are no range", entry.size, entry.offset)))?;
        if end > len {
            let reason = format!("the file ends here, and elements that end at {end} were written");
            return Err(damaged(file, len, reason));
        }
        let size =
            usize::try_from(size).map_err(|_| wrong(format!("{size} bytes don't fit into the memory")))?;
        Ok(Piece { region, file: file.clone(), offset, size, crc: entry.crc32c })
    }

    fn bytes(&self) -> u64 {
        self.lens.iter().fold(0, |all: u64, len| all.saturating_add(*len))
    }
}

/// Creates the tensor of an entry, and checks that the pieces cover each of its elements exactly once and have the
/// right sizes.
fn tensor(
    name: &str,
    found: &Found,
    slices: &BTreeMap<Vec<u8>, Found>,
    shards: &Shards,
    index: &Path,
) -> Result<Tensor> {
    let wrong = |reason: String| damaged(index, found.at, format!("{name:?}: {reason}"));
    let code = found.entry.dtype;
    let dtype = dtype(code);
    let shape = shape(&found.entry).map_err(wrong)?;
    let mut pieces = Vec::new();
    if found.entry.slices.is_empty() {
        pieces.push(shards.piece(found, Region::whole(&shape), index)?);
    }
    for slice in &found.entry.slices {
        let extents: Vec<_> = slice.extents.iter().map(|extent| (extent.start, extent.length)).collect();
        let region = region(&extents, &shape).map_err(wrong)?;
        let there = slices.get(&slice_key(name, &extents));
        let there = there.ok_or_else(|| wrong(format!("its slice {region:?} is missing")))?;
        if there.entry.dtype != code || crate::bundle::shape(&there.entry).as_ref() != Ok(&region.shape) {
            return Err(damaged(index, there.at, format!("the slice of {name:?} is not {region:?}")));
        }
        pieces.push(shards.piece(there, region, index)?);
    }
    pieces.sort_by(|a, b| a.region.start.cmp(&b.region.start));
    let regions: Vec<_> = pieces.iter().map(|piece| piece.region.clone()).collect();
    require_cover(&shape, &regions).map_err(wrong)?;
    if let Ok(dtype) = dtype {
        for piece in &pieces {
            let elements = count(&piece.region.shape).unwrap_or(usize::MAX);
            // A string takes a byte for its length or more.
            let fits = match dtype.bytes() {
                Some(bytes) => elements.checked_mul(bytes) == Some(piece.size),
                None => elements <= piece.size,
            };
            if !fits {
                let reason = format!("{} bytes are not {dtype}{:?}", piece.size, piece.region.shape);
                return Err(wrong(reason));
            }
        }
    }
    // Slices of forged bundles could all be the same bytes.
    let sum = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.size as u64));
    if sum > shards.bytes() {
        return Err(wrong(format!("its slices have {sum} bytes, and all files have {}", shards.bytes())));
    }
    Ok(Tensor { dtype, shape, pieces })
}

fn shape(entry: &proto::Entry) -> Result<Vec<usize>, String> {
    let shape = entry.shape.clone().unwrap_or_default();
    if shape.unknown_rank || shape.dims.len() > MAX_RANK {
        return Err(format!("a shape of {} axes is none of a saved tensor", shape.dims.len()));
    }
    let axis =
        |dim: &proto::Dim| usize::try_from(dim.size).map_err(|_| format!("an axis has size {}", dim.size));
    shape.dims.iter().map(axis).collect()
}

fn region(extents: &[(i64, Option<i64>)], shape: &[usize]) -> Result<Region, String> {
    if extents.len() != shape.len() {
        return Err(format!("a slice has {} axes, and the tensor has shape {shape:?}", extents.len()));
    }
    let axis = |((start, length), all): (&(i64, Option<i64>), &usize)| {
        let length = length.map_or(Some(*all), |length| usize::try_from(length).ok())?;
        Some((usize::try_from(*start).ok()?, length))
    };
    let axes = extents.iter().zip(shape).map(axis).collect::<Option<Vec<_>>>();
    let axes = axes.ok_or_else(|| format!("{extents:?} are no ranges of {shape:?}"))?;
    let (start, shape) = axes.into_iter().unzip();
    Ok(Region { start, shape })
}

/// Returns the dtype that has this number in TensorFlow, or the number if the dtype is not supported.
fn dtype(code: i32) -> Result<DType, i32> {
    Ok(match code {
        1 => DType::F32,
        2 => DType::F64,
        3 => DType::I32,
        4 => DType::U8,
        5 => DType::I16,
        6 => DType::I8,
        7 => DType::String,
        8 => DType::C64,
        9 => DType::I64,
        10 => DType::Bool,
        14 => DType::Bf16,
        17 => DType::U16,
        18 => DType::C128,
        19 => DType::F16,
        22 => DType::U32,
        23 => DType::U64,
        other => return Err(other),
    })
}

/// Returns TensorFlow's name for the number of a dtype that is not supported, for error messages.
pub(crate) fn unsupported(code: i32) -> String {
    let name = match code {
        11 => "qint8",
        12 => "quint8",
        13 => "qint32",
        15 => "qint16",
        16 => "quint16",
        20 => "resource",
        21 => "variant",
        24 => "float8_e5m2",
        25 => "float8_e4m3fn",
        26 => "float8_e4m3fnuz",
        27 => "float8_e4m3b11fnuz",
        28 => "float8_e5m2fnuz",
        29 => "int4",
        30 => "uint4",
        31 => "int2",
        32 => "uint2",
        _ => return format!("number {code} of TensorFlow's dtypes"),
    };
    name.to_string()
}

/// Returns a path with text appended to its last component.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_os_string();
    path.push(suffix);
    path.into()
}
