//! Tar files in WebDataset's layout, intact and damaged.

use distribute_data::webdataset::{Sample, Samples, samples, samples_skipping};
use distribute_data::{Error, Files, Location, Result, SkippedRecords};
use std::io::Write;
use tar::{Builder, EntryType, Header};

fn header(kind: EntryType, len: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(len as u64);
    header.set_mode(0o644);
    header
}

fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (name, text) in files {
        tar.append_data(&mut header(EntryType::Regular, text.len()), name, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn read(bytes: Vec<u8>) -> Result<Vec<Sample>> {
    Samples::open(Location::bytes("t.tar", bytes))?.collect()
}

fn sample(key: &str, files: &[(&str, &str)]) -> Sample {
    [("__key__", key)].iter().chain(files).map(|(k, v)| (k.to_string(), v.as_bytes().to_vec())).collect()
}

const FILES: [(&str, &str); 5] =
    [("a/1.jpg", "one"), ("a/1.CLS", "1"), ("README", "x"), ("a/2.seg.png", "two"), ("b/2.jpg", "")];

fn expected() -> Vec<Sample> {
    vec![
        sample("a/1", &[("jpg", "one"), ("cls", "1")]),
        sample("a/2", &[("seg.png", "two")]),
        sample("b/2", &[("jpg", "")]),
    ]
}

#[test]
fn files_of_one_key_that_follow_each_other_are_a_sample() {
    assert_eq!(read(archive(&FILES)).unwrap(), expected());
    assert!(read(archive(&[])).unwrap().is_empty());
    let apart = read(archive(&[("1.a", "x"), ("2.a", "y"), ("1.b", "z")])).unwrap();
    assert_eq!(apart.len(), 3, "a key that comes again later is another sample");
}

#[test]
fn samples_of_several_files_are_a_dataset() {
    let file = |name: &str, files: &[(&str, &str)]| Location::bytes(name, archive(files));
    let data = samples(Files::from([file("a.tar", &FILES), file("b.tar", &[("c.txt", "three")])]));
    let keys: Vec<_> =
        data.iter().map(|sample| sample.unwrap()["__key__"].to_vec::<Vec<u8>>().unwrap()).collect();
    assert_eq!(keys.concat(), [b"a/1".to_vec(), b"a/2".to_vec(), b"b/2".to_vec(), b"c".to_vec()]);
    assert_eq!(data.skip(3).iter().count(), 1);
}

#[test]
fn gzip_is_decompressed_and_a_name_that_could_be_zlib_is_not() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&archive(&FILES)).unwrap();
    assert_eq!(read(encoder.finish().unwrap()).unwrap(), expected());
    assert_eq!(read(archive(&[("x^.a", "b")])).unwrap(), [sample("x^", &[("a", "b")])]);
}

#[test]
fn long_names_of_both_kinds_folders_and_links() {
    let long = format!("{}/key.txt", "folder".repeat(40));
    let mut tar = Builder::new(Vec::new());
    tar.append_data(&mut header(EntryType::Directory, 0), "folder.d", &b""[..]).unwrap();
    tar.append_data(&mut header(EntryType::Regular, 1), &long, &b"g"[..]).unwrap();
    tar.append_link(&mut header(EntryType::Symlink, 0), "link.txt", "target").unwrap();
    tar.append_pax_extensions([("path", "pax/key.txt".as_bytes()), ("size", b"1")]).unwrap();
    tar.append_data(&mut header(EntryType::Regular, 1), "short.txt", &b"p"[..]).unwrap();
    let samples = read(tar.into_inner().unwrap()).unwrap();
    let key = long.strip_suffix(".txt").unwrap();
    assert_eq!(samples, [sample(key, &[("txt", "g")]), sample("pax/key", &[("txt", "p")])]);
}

#[test]
fn two_files_of_one_kind_are_an_error_at_the_second() {
    let error = read(archive(&[("1.a", "x"), ("1.A", "y")])).unwrap_err();
    assert_eq!(error.to_string(), "'t.tar', byte 1024: sample '1' has two files 'a'");
}

#[test]
fn an_archive_truncated_anywhere_is_an_error_after_its_complete_samples() {
    let bytes = archive(&FILES);
    // Of the two empty blocks at the end, one is enough.
    let whole = bytes.len() - 512;
    for cut in 0..whole {
        let mut samples =
            Samples::open(Location::bytes("t.tar", bytes[..cut].to_vec())).unwrap().require_end();
        let error = samples.by_ref().find_map(Result::err).expect("an error");
        match error {
            Error::Damaged { path, offset, .. } => assert_eq!((path, offset), ("t.tar".into(), cut as u64)),
            other => panic!("{other}"),
        }
        assert!(samples.next().is_none(), "an error ends the pass");
    }
    assert_eq!(read(bytes[..whole].to_vec()).unwrap(), expected());
}

/// Checks that a file without the empty blocks at the end gives its samples, because some writers omit these blocks.
/// With `require_end`, it is an error, because a truncated file may have lost samples.
#[test]
fn a_file_without_an_end_has_its_samples_and_is_warned_of() {
    let bytes = archive(&FILES);
    let members =
        bytes.len() - bytes.rchunks(512).take_while(|block| block.iter().all(|b| *b == 0)).count() * 512;
    assert_eq!(read(bytes[..members].to_vec()).unwrap(), expected());
    let last =
        Samples::open(Location::bytes("t.tar", bytes[..members].to_vec())).unwrap().require_end().last();
    let error = last.unwrap().unwrap_err().to_string();
    assert!(
        error.contains("without the empty block") && error.contains(&format!("byte {members}")),
        "{error}"
    );
    assert!(read(bytes[..members - 1].to_vec()).is_err());
}

#[test]
fn archives_that_follow_each_other_are_read_to_the_end() {
    let both = [archive(&[("1.a", "x")]), archive(&[("2.a", "y"), ("2.b", "z")])].concat();
    assert_eq!(
        read(both.clone()).unwrap(),
        [sample("1", &[("a", "x")]), sample("2", &[("a", "y"), ("b", "z")])]
    );
    let mut more = both;
    more.extend([b'x'; 512]);
    assert!(read(more).unwrap_err().to_string().contains("this is not the header of a tar file"));
}

#[test]
fn a_changed_byte_never_panics_and_headers_notice_it() {
    let bytes = archive(&FILES);
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let read = read(changed);
            if at < 500 {
                assert!(read.is_err(), "byte {at}");
            }
        }
    }
}

#[test]
fn no_memory_is_reserved_for_the_claims_of_a_header() {
    let mut large = header(EntryType::Regular, 1 << 27);
    large.set_path("1.a").unwrap();
    large.set_cksum();
    let error = read([&large.as_bytes()[..], b"x"].concat()).unwrap_err();
    assert_eq!(error.to_string(), "'t.tar', byte 513: the file ends, 134217727 bytes early or more");
}

/// Returns the keys of the samples before the first error, and the error.
fn until_error(mut samples: Samples) -> (Vec<String>, String) {
    let mut keys = Vec::new();
    for sample in samples.by_ref() {
        match sample {
            Ok(sample) => keys.push(String::from_utf8(sample["__key__"].clone()).unwrap()),
            Err(error) => {
                assert!(samples.next().is_none(), "an error ends the pass");
                return (keys, error.to_string());
            }
        }
    }
    (keys, "no error".into())
}

/// Renames files whose names contain `?` to names that are not UTF-8.
fn with_broken_names(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in (0..bytes.len()).step_by(512) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&bytes[at..at + 512]);
        if let Some(place) = bytes[at..at + 100].iter().position(|byte| *byte == b'?') {
            header.as_mut_bytes()[place] = 0xff;
            header.set_cksum();
            bytes[at..at + 512].copy_from_slice(header.as_bytes());
        }
    }
    bytes
}

#[test]
fn complete_samples_come_before_an_error() {
    let open = |bytes: Vec<u8>| Samples::open(Location::bytes("t.tar", bytes)).unwrap();
    let names = |files: &[(&str, &str)]| until_error(open(with_broken_names(archive(files))));
    let (keys, error) = names(&[("a.x", "1"), ("b?.x", "2"), ("c.x", "3")]);
    assert_eq!((keys, error.contains("is not UTF-8")), (vec!["a".to_string()], true), "{error}");
    // The file with the invalid name belongs to a sample.
    let (keys, error) = names(&[("a.x", "1"), ("b.x", "2"), ("b.?", "3"), ("c.x", "4")]);
    assert_eq!((keys, error.contains("is not UTF-8")), (vec!["a".to_string()], true), "{error}");
    // A sample that is broken at its first file.
    let limited =
        Location::bytes("t.tar", archive(&[("a.x", "1"), ("b.x", &"2".repeat(400))])).element_limit(500);
    let (keys, error) = until_error(Samples::open(limited).unwrap());
    assert_eq!((keys, error.contains("sample 'b' takes more")), (vec!["a".to_string()], true), "{error}");
    // A file of another sample that cannot be read, and an end that is missing.
    let bytes = archive(&[("a.x", "1"), ("b.x", "2")]);
    let (keys, error) = until_error(open(bytes[..1537].to_vec()));
    assert_eq!((keys, error.contains("the file ends")), (vec!["a".to_string()], true), "{error}");
    let (keys, error) = until_error(open(bytes[..2048].to_vec()).require_end());
    let both = vec!["a".to_string(), "b".to_string()];
    assert_eq!((keys, error.contains("without the empty block")), (both, true), "{error}");
    // A file of the same sample, or of an unknown one, may be missing in it.
    let (keys, _) = until_error(open(archive(&[("a.x", "1"), ("a.y", "2")])[..1537].to_vec()));
    assert_eq!(keys, [""; 0]);
    let mut damaged = bytes;
    damaged[1024] ^= 1;
    assert_eq!(until_error(open(damaged)).0, [""; 0]);
}

#[test]
fn a_sample_with_a_name_that_is_not_utf_8_is_skipped_and_counted_once() {
    let files =
        [("a.x", "1"), ("b.x", "2"), ("b.?", "3"), ("b.y", "4"), ("c?.x", "5"), ("c?.y", "6"), ("d.x", "7")];
    let skipped = SkippedRecords::new();
    let tar = Location::bytes("t.tar", with_broken_names(archive(&files)));
    let data = samples_skipping(tar, &skipped);
    let keys: Vec<_> =
        data.iter().flat_map(|sample| sample.unwrap()["__key__"].to_vec::<Vec<u8>>().unwrap()).collect();
    assert_eq!((keys, skipped.count()), (vec![b"a".to_vec(), b"d".to_vec()], 2));
}
