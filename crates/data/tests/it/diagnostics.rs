//! Compiler messages for typical mistakes.

use distribute_testing::watched;
use std::path::PathBuf;
use std::process::Command;

/// Returns the builds of this crate for the tests, newest first. There may be one for each set of features.
fn libraries() -> Vec<PathBuf> {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libdistribute_data-") && name.ends_with(".rlib")
        })
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    found
}

/// Returns the compiler's message for the body of a function.
fn compiler_output(body: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mistake.rs");
    std::fs::write(&file, format!("fn main() {{ use distribute_data::Dataset; {body} }}")).unwrap();
    let mut texts = Vec::new();
    for library in libraries() {
        let output = Command::new(std::env::var("RUSTC").unwrap_or("rustc".into()))
            .args(["--edition=2024", "--emit=metadata", "--crate-type=bin", "--out-dir"])
            .arg(folder.path())
            .arg("-L")
            .arg(library.parent().unwrap())
            .arg("--extern")
            .arg(format!("distribute_data={}", library.display()))
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // A library that was built with other versions of its dependencies can no longer be used.
        if !["error[E0460]", "error[E0463]", "error[E0514]", "error[E0786]"]
            .iter()
            .any(|stale| text.contains(stale))
        {
            return text;
        }
        texts.push(text);
    }
    panic!("no library of this crate can be used: {texts:?}");
}

#[test]
fn a_function_that_can_fail_is_sent_to_the_try_methods() {
    watched(|| {
        assert_eq!(
            compiler_output("let _ = Dataset::range(3).map(|x| x + 1);"),
            "",
            "right programs compile"
        );
        for mistake in [
            "let _ = Dataset::range(3).map(|x| { let y = u8::try_from(x)?; Ok(i64::from(y)) });",
            "let _ = Dataset::range(3).map(u8::try_from);",
            "let _ = Dataset::range(3).map_parallel(2, |x| i32::try_from(x));",
        ] {
            let text = compiler_output(mistake);
            assert!(text.contains("is not a nest of tensors") && text.contains("try_map"), "{text}");
        }
    });
}
