//! A writer of bundles, for those that TensorFlow doesn't write: large, compressed or forged.

use distribute_tensor::{DType, HostTensor, codec};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes tensors to the bundle with this prefix. The names must be sorted.
pub fn write(prefix: &Path, tensors: &[(&str, &HostTensor)]) {
    let (mut data, mut entries) = (Vec::new(), vec![(Vec::new(), header(1, 0, 0))]);
    for (name, tensor) in tensors {
        let (bytes, crc) = elements(tensor);
        let code = code(tensor.dtype());
        entries.push((
            name.as_bytes().to_vec(),
            entry(code, tensor.dims(), data.len(), bytes.len(), masked(crc)),
        ));
        data.extend_from_slice(&bytes);
    }
    write_files(prefix, &table(&[entries], false), &[&data]);
}

pub fn write_files(prefix: &Path, index: &[u8], data: &[&[u8]]) {
    let with = |suffix: String| PathBuf::from(format!("{}{suffix}", prefix.display()));
    fs::write(with(".index".into()), index).unwrap();
    for (at, bytes) in data.iter().enumerate() {
        fs::write(with(format!(".data-{at:05}-of-{:05}", data.len())), bytes).unwrap();
    }
}

/// Returns the bytes of a tensor and their checksum.
pub fn elements(tensor: &HostTensor) -> (Vec<u8>, u32) {
    let mut bytes = Vec::new();
    let Some(strings) = tensor.as_slice::<Vec<u8>>() else {
        codec::append(tensor.buffer(), 0..tensor.len(), &mut bytes);
        let crc = crc32c::crc32c(&bytes);
        return (bytes, crc);
    };
    let lens: Vec<u8> = strings.iter().flat_map(|string| (string.len() as u32).to_le_bytes()).collect();
    strings.iter().for_each(|string| varint(string.len() as u64, &mut bytes));
    let sum = masked(crc32c::crc32c(&lens)).to_le_bytes();
    let text = strings.concat();
    bytes.extend_from_slice(&sum);
    bytes.extend_from_slice(&text);
    (bytes, crc32c::crc32c(&[lens.as_slice(), &sum, &text].concat()))
}

pub fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn code(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 4,
        DType::String => 7,
        DType::I64 => 9,
        other => panic!("no test writes {other}"),
    }
}

pub fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Returns a protobuf field that contains a number.
pub fn number(tag: u64, number: u64) -> Vec<u8> {
    let mut to = Vec::new();
    varint(tag << 3, &mut to);
    varint(number, &mut to);
    to
}

/// Returns a protobuf field that contains bytes.
pub fn message(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut to = Vec::new();
    varint(tag << 3 | 2, &mut to);
    varint(bytes.len() as u64, &mut to);
    to.extend_from_slice(bytes);
    to
}

pub fn header(shards: u64, endianness: u64, min_consumer: u64) -> Vec<u8> {
    [number(1, shards), number(2, endianness), message(3, &number(2, min_consumer))].concat()
}

pub fn shape(dims: &[usize]) -> Vec<u8> {
    dims.iter().flat_map(|dim| message(2, &number(1, *dim as u64))).collect()
}

pub fn entry(code: u64, dims: &[usize], offset: usize, size: usize, crc: u32) -> Vec<u8> {
    let mut to =
        [number(1, code), message(2, &shape(dims)), number(4, offset as u64), number(5, size as u64)]
            .concat();
    to.push(6 << 3 | 5);
    to.extend_from_slice(&crc.to_le_bytes());
    to
}

/// Returns a table with a block for each list of keys and values.
pub fn table(blocks: &[Vec<(Vec<u8>, Vec<u8>)>], compressed: bool) -> Vec<u8> {
    let mut file = Vec::new();
    let mut handles = Vec::new();
    for entries in blocks {
        let last = entries.last().map_or(Vec::new(), |(key, _)| key.clone());
        handles.push((last, put(&mut file, &contents(entries), compressed)));
    }
    let meta = put(&mut file, &contents(&[]), compressed);
    let index = put(&mut file, &contents(&handles), compressed);
    let mut footer = [meta, index].concat();
    footer.resize(40, 0);
    file.extend_from_slice(&footer);
    file.extend_from_slice(&0xdb47_7524_8b80_fb57u64.to_le_bytes());
    file
}

/// Returns the contents of a block, in which keys share all bytes that they can.
fn contents(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut to, mut last) = (Vec::new(), &Vec::new());
    for (key, value) in entries {
        let shared = key.iter().zip(last).take_while(|(a, b)| a == b).count();
        for len in [shared, key.len() - shared, value.len()] {
            varint(len as u64, &mut to);
        }
        to.extend_from_slice(&key[shared..]);
        to.extend_from_slice(value);
        last = key;
    }
    to.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
    to
}

/// Appends a block to the file and returns its location.
fn put(file: &mut Vec<u8>, contents: &[u8], compressed: bool) -> Vec<u8> {
    let mut block = if compressed {
        snap::raw::Encoder::new().compress_vec(contents).unwrap()
    } else {
        contents.to_vec()
    };
    let mut handle = Vec::new();
    varint(file.len() as u64, &mut handle);
    varint(block.len() as u64, &mut handle);
    block.push(u8::from(compressed));
    let crc = masked(crc32c::crc32c(&block));
    file.extend_from_slice(&block);
    file.extend_from_slice(&crc.to_le_bytes());
    handle
}
