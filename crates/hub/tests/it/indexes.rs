//! Tests: downloads of weights that are in one file or in several.

use crate::fake::{Fake, bytes, text};
use distribute_testing::watched;
use std::fs;

fn index(files: &[&str]) -> Vec<u8> {
    let entries: Vec<_> = files.iter().enumerate().map(|(at, file)| format!("\"t{at}\": {file:?}")).collect();
    format!("{{\"metadata\": {{\"total_size\": 1}}, \"weight_map\": {{{}}}}}", entries.join(", "))
        .into_bytes()
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn weights_are_one_file_or_those_of_the_index() {
    watched(|| {
        let one = Fake::new(&[("model.safetensors", b"one", true)]);
        let paths = one.model().safetensors().unwrap();
        assert_eq!(paths.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), [b"one"]);

        let (first, second) = (bytes(1000), bytes(2000));
        let listed = index(&["b.safetensors", "a.safetensors", "b.safetensors"]);
        let files: [(&str, &[u8], bool); 3] =
            [(INDEX, &listed, false), ("a.safetensors", &first, true), ("b.safetensors", &second, true)];
        let fake = Fake::new(&files);
        let paths = fake.model().safetensors().unwrap();
        assert_eq!(paths.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), [first, second]);
        // Also without the hub.
        assert_eq!(fake.settings().offline(true).model(crate::fake::ID).safetensors().unwrap(), paths);

        let neither = Fake::new(&[("pytorch_model.bin", b"x", true)]);
        assert!(text(neither.model().safetensors()).contains(INDEX));
    });
}

#[test]
fn an_index_in_a_folder_lists_files_of_the_folder() {
    watched(|| {
        let listed = index(&["a.safetensors"]);
        let fake = Fake::new(&[("unet/i.json", &listed, false), ("unet/a.safetensors", b"abc", true)]);
        let paths = fake.model().indexed("unet/i.json").unwrap();
        assert!(paths[0].ends_with("unet/a.safetensors"));
    });
}

#[test]
fn all_files_are_of_one_commit_although_the_branch_moves() {
    watched(|| {
        let listed = index(&["a.safetensors"]);
        let fake = Fake::new(&[(INDEX, &listed, false), ("a.safetensors", b"old", true)]);
        let model = fake.model();
        model.file(INDEX).unwrap();
        fake.commit(2, &[(INDEX, &listed, false), ("a.safetensors", b"new", true)]);
        let read = |paths: Vec<std::path::PathBuf>| fs::read_to_string(&paths[0]).unwrap();
        assert_eq!(read(model.indexed(INDEX).unwrap()), "old");
        assert_eq!(read(fake.model().indexed(INDEX).unwrap()), "new");
    });
}

#[test]
fn a_malformed_or_hostile_index_is_refused() {
    watched(|| {
        for (listed, expected) in [
            (index(&["../../x"]), "the file \"../../x\""),
            (index(&["a.safetensors", "b/../../x"]), "the file \"b/../../x\""),
            (index(&[]), "it lists no file"),
            (b"{}".to_vec(), "weight_map"),
            (b"<html>".to_vec(), "expected value"),
            (b"{\"weight_map\": {\"a\": 1}}".to_vec(), "expected a string"),
        ] {
            let fake = Fake::new(&[(INDEX, &listed, false), ("a.safetensors", b"x", true)]);
            let error = text(fake.model().safetensors());
            assert!(error.contains(expected), "{error}");
            assert_eq!(fake.large().len(), 0);
        }
    });
}
