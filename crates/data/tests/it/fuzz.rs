//! Fuzz tests of file readers with arbitrary bytes: no panics, and no data that the file does not have.
//!
//! `DISTRIBUTE_FUZZ_INPUTS=1000000 cargo test --release -p distribute-data --test it fuzz` tries this number of inputs
//! on each reader. `DISTRIBUTE_FUZZ_SEED=7` selects other inputs.

use distribute_data::TfRecordReader;
use distribute_data::example::{Example, Feature, Features, VarLen};
use distribute_tensor::HostTensor;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Random choices for one input.
struct Choice(ChaCha8Rng);

impl Choice {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most + 1)];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns one of the valid inputs with a few changes, or sometimes random bytes.
    fn input(&mut self, valid: &[Vec<u8>]) -> Vec<u8> {
        if self.below(16) == 0 {
            return self.bytes(64);
        }
        let mut bytes = valid[self.below(valid.len())].clone();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len());
            let end = at + self.below((bytes.len() - at).min(24) + 1);
            match self.below(7) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => drop(bytes.drain(at..end)),
                4 => bytes.extend_from_within(at..end),
                5 => drop(bytes.splice(at..at, self.bytes(12))),
                _ => {
                    let other = &valid[self.below(valid.len())];
                    bytes.splice(at..end, other[self.below(other.len())..].iter().copied());
                }
            }
        }
        bytes
    }
}

/// Tries inputs, and prints the failed input's seed so that it can be reproduced.
fn fuzz(reader: &str, mut input: impl FnMut(&mut Choice) -> Vec<u8>, check: impl Fn(&[u8]) -> bool) {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap(),
        Err(_) => default,
    };
    let (inputs, seed) = (number("DISTRIBUTE_FUZZ_INPUTS", 20_000), number("DISTRIBUTE_FUZZ_SEED", 1));
    println!("{reader}: {inputs} inputs of seed {seed}");
    let mut good = 0;
    for index in 0..inputs {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index);
        let bytes = input(&mut Choice(rng));
        match catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
            Ok(valid) => good += u64::from(valid),
            Err(_) => panic!("{reader}: input {index} of seed {seed}: {bytes:02x?}"),
        }
    }
    println!("{reader}: {good} of them valid");
    assert!(good > inputs / 100 && good < inputs, "the inputs are all alike");
}

fn examples() -> Vec<Vec<u8>> {
    let words = ["a", "", "word"].into();
    let examples = [
        Example::from([("x", [0.5, 1.5].into()), ("ids", [1, -1, 300].into()), ("words", words)]),
        Example::from([("x", Feature::Floats(vec![])), ("ids", 7.into()), ("other", [1.0; 9].into())]),
        Example::from([("ids", [1; 20].into())]),
        Example::default(),
    ];
    let mut records: Vec<Vec<u8>> = examples.iter().map(Example::encode).collect();
    // Numbers one by one, unknown fields, a group, a feature in two parts, one twice.
    let list = [8, 5, 8, 0x96, 1, 0x10, 9, 0x2b, 8, 1, 0x2c];
    let feature = [&[0x1a, 11][..], &list].concat();
    let entry = [&[0x0a, 3, b'i', b'd', b's', 0x12, 13][..], &feature, &[0x12, 13], &feature].concat();
    let features = [&[0x0a, entry.len() as u8][..], &entry, &[0x0a, entry.len() as u8], &entry].concat();
    records.push([&[0x0a, features.len() as u8][..], &features, &[0x50, 1]].concat());
    records
}

fn framed(length: u64, data: &[u8]) -> Vec<u8> {
    let masked =
        |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = length.to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// Returns the records, read at most `most` at once, and the error at the end.
fn read(bytes: &[u8], most: usize) -> (Vec<Vec<u8>>, Option<String>) {
    let mut reader = TfRecordReader::new("f", bytes);
    let mut all = Vec::new();
    loop {
        match reader.read(most) {
            Ok(records) if records.is_empty() => return (all, None),
            Ok(records) => all.extend(records.iter().map(<[u8]>::to_vec)),
            Err(error) => return (all, Some(error.to_string())),
        }
    }
}

#[test]
fn records() {
    let records = examples();
    let file =
        |records: &[Vec<u8>]| records.iter().flat_map(|r| framed(r.len() as u64, r)).collect::<Vec<u8>>();
    let valid = [file(&records), file(&records[..1]), file(&[vec![], vec![]]), vec![]];
    let input = |choice: &mut Choice| match choice.below(3) {
        0 => choice.input(&valid),
        // Wrong lengths with valid checksums.
        1 => {
            let data = choice.bytes(40);
            let length = [data.len() as u64, data.len() as u64 + 1, 1 << 40, u64::MAX][choice.below(4)];
            [file(&records[..choice.below(3)]), framed(length, &data), choice.bytes(4)].concat()
        }
        _ => {
            let records: Vec<Vec<u8>> = (0..choice.below(6)).map(|_| choice.bytes(300)).collect();
            let mut bytes = file(&records);
            bytes.truncate(bytes.len() - choice.below(2).min(bytes.len()));
            bytes
        }
    };
    fuzz("records", input, |bytes| {
        let (records, error) = read(bytes, usize::MAX);
        let again = file(&records);
        assert!(bytes.starts_with(&again), "records that are not there");
        assert_eq!(error.is_none(), again.len() == bytes.len(), "{error:?}");
        assert_eq!(read(bytes, 2), (records, error.clone()));
        error.is_none()
    });
}

#[test]
fn features() {
    let wanted = [("x", VarLen::floats()), ("ids", VarLen::ints()), ("words", VarLen::bytes())];
    let features = wanted
        .into_iter()
        .try_fold(Features::new(), |features, (name, wanted)| features.with(name, wanted))
        .unwrap();
    let valid = examples();
    fuzz(
        "features",
        |choice| choice.input(&valid),
        |record| {
            // The two readers agree: one creates messages, the other reads only the requested features.
            let columns = features.parse_one(record);
            let Ok(example) = Example::decode(record) else { return false };
            // Floats may be NaN: bytes are compared.
            let again = example.encode();
            assert_eq!(Example::decode(&again).unwrap().encode(), again);
            let values = |name| example.features.get(name).cloned();
            match (values("x"), values("ids"), values("words")) {
                (
                    None | Some(Feature::Floats(_)),
                    None | Some(Feature::Ints(_)),
                    None | Some(Feature::Bytes(_)),
                ) => {
                    let columns = columns.unwrap();
                    for (name, column) in &columns {
                        let found = feature(column);
                        match values(name) {
                            Some(feature) => assert_eq!(encoded(name, found), encoded(name, feature)),
                            None => assert!(found.is_empty()),
                        }
                    }
                    true
                }
                _ => {
                    assert!(columns.unwrap_err().to_string().contains("expected"));
                    false
                }
            }
        },
    );
}

fn feature(column: &HostTensor) -> Feature {
    match (column.as_slice::<f32>(), column.as_slice::<i64>(), column.as_slice::<Vec<u8>>()) {
        (Some(floats), _, _) => Feature::Floats(floats.to_vec()),
        (_, Some(ints), _) => Feature::Ints(ints.to_vec()),
        (_, _, strings) => Feature::Bytes(strings.unwrap_or_default().to_vec()),
    }
}

fn encoded(name: &str, feature: Feature) -> Vec<u8> {
    Example::from([(name, feature)]).encode()
}

/// Checks examples that are cut at any byte, or have any bit flipped: if one can be decoded, both readers agree about
/// it.
#[test]
fn damaged_examples() {
    let features = Features::new().with("ids", VarLen::ints()).unwrap();
    for record in examples() {
        let cut = (0..record.len()).map(|len| record[..len].to_vec());
        let flipped = (0..record.len() * 8).map(|bit| {
            let mut record = record.clone();
            record[bit / 8] ^= 1 << (bit % 8);
            record
        });
        for damaged in cut.chain(flipped) {
            let parsed = features.parse_one(&damaged);
            let Ok(example) = Example::decode(&damaged) else { continue };
            match example.features.get("ids") {
                Some(Feature::Ints(ids)) => assert_eq!(parsed.unwrap()["ids"].as_slice(), Some(&ids[..])),
                Some(_) => assert!(parsed.is_err()),
                None => assert!(parsed.unwrap()["ids"].is_empty()),
            }
        }
    }
}
