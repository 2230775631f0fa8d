//! Parts of a checkpoint, or of a file of weights, in another model. The selected part is restored completely or not at
//! all, and the rest is reported.

use super::{Training, folder, mirrored};
use candle_core::safetensors::save;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, VarBuilder, linear};
use distribute::checkpoint::{RestoreFilter, RestoreReport, Unrestored};
use distribute::optimizer::rules::Sgd;
use distribute::{Checkpoint, Error, Replicated, Result};
use distribute_testing::{child, watched};
use std::collections::HashMap;
use std::path::Path;

/// Creates a model of a body, and a head with the given number of classes.
fn model(classes: usize, seed: u64) -> Replicated<(Linear, Linear)> {
    let build = move |vb: VarBuilder| -> candle_core::Result<_> {
        Ok((linear(3, 5, vb.pp("body"))?, linear(5, classes, vb.pp("head"))?))
    };
    mirrored(2).replicate_seeded(seed, build).unwrap()
}

fn get(model: &Replicated<(Linear, Linear)>, name: &str) -> Vec<f32> {
    model.variables.get(name).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn names(restored: &RestoreReport) -> (Vec<&str>, Vec<&str>, Vec<&str>) {
    (
        restored.restored.keys().map(String::as_str).collect(),
        restored.unrestored.keys().map(String::as_str).collect(),
        restored.unused.iter().map(String::as_str).collect(),
    )
}

fn refused<T>(model: &Replicated<(Linear, Linear)>, restore: impl FnOnce() -> Result<T>) -> String {
    let before = model.variables.sha256().unwrap();
    let error = restore().map(drop).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert_eq!(model.variables.sha256().unwrap(), before, "{error}");
    error.to_string()
}

// INV-23
#[test]
fn a_checkpoint_is_restored_into_a_model_with_another_head_and_the_rest_is_reported() {
    watched(|| {
        let (_folder, path) = folder();
        let (theirs, mine) = (model(4, 1), model(2, 2));
        Checkpoint::new().part("model", &theirs.variables).metadata("step", 7).save(&path).unwrap();
        let part = || Checkpoint::new().part("model", &mine.variables);
        let head = get(&mine, "head.weight");

        // All or nothing: the body would fit.
        let error = refused(&mine, || part().restore_some(&path, &RestoreFilter::all()));
        for text in [
            "model/head.bias is float32[4], but here it is float32[2]",
            "model/head.weight",
            "RestoreFilter::lenient",
        ] {
            assert!(error.contains(text), "{error}");
        }
        let missing = RestoreFilter::named(|name| Some(name.replace("body", "encoder")));
        let error = refused(&mine, || part().restore_some(&path, &missing));
        assert!(error.contains("there is no model/encoder.bias"), "{error}");
        let nothing = RestoreFilter::named(|name| Some(format!("x/{name}"))).lenient();
        let error = refused(&mine, || part().restore_some(&path, &nothing));
        assert!(
            error.contains("nothing of") && error.contains("0 of 4 set; kept: model/body.bias"),
            "{error}"
        );

        let restored = part().restore_some(&path, &RestoreFilter::all().lenient()).unwrap();
        let (body, heads) =
            (["model/body.bias", "model/body.weight"], ["model/head.bias", "model/head.weight"]);
        assert_eq!(names(&restored), (body.to_vec(), heads.to_vec(), heads.to_vec()));
        assert!(
            matches!(&restored.unrestored["model/head.bias"], Unrestored::Mismatch { there, .. } if there == "float32[4]")
        );
        assert_eq!(get(&mine, "body.weight"), get(&theirs, "body.weight"));
        assert_eq!(get(&mine, "head.weight"), head);

        // By name, from a part of another name.
        let other = model(2, 3);
        let body_only =
            RestoreFilter::named(|name| Some(format!("model/body{}", name.strip_prefix("student/body")?)));
        let restored =
            Checkpoint::new().part("student", &other.variables).restore_some(&path, &body_only).unwrap();
        assert_eq!(restored.restored["student/body.bias"], "model/body.bias");
        assert_eq!(restored.unrestored["student/head.bias"], Unrestored::NotSelected);
        assert_eq!(get(&other, "body.bias"), get(&theirs, "body.bias"));
    });
}

// INV-23
#[test]
fn running_statistics_are_restored_and_an_optimizer_completely_or_not_at_all() {
    watched(|| {
        let (_folder, path) = folder();
        let new = |replicas, seed, dtype| Training::new(replicas, seed, dtype, true, Sgd);
        let saved = new(2, 1, DType::F32);
        saved.train(0, 3);
        saved.parts().save(&path).unwrap();
        let mine = new(2, 2, DType::F32);
        let before = mine.bits();
        let error = mine.parts().restore_some(&path, &RestoreFilter::all()).unwrap_err().to_string();
        assert!(error.contains(r#"part "optimizer" can only be restored completely"#), "{error}");
        assert_eq!(mine.bits(), before);
        let model = |training: &Training<Sgd>| {
            let part = Checkpoint::new().part("model", &training.model.variables);
            part.restore_some(&path, &RestoreFilter::all()).unwrap()
        };
        let restored = model(&mine);
        assert!(restored.unrestored.is_empty() && restored.unused.is_empty(), "{restored}");
        let variables = |training: &Training<Sgd>| training.bits().into_iter().skip(2).collect::<Vec<_>>();
        assert_eq!(variables(&mine), variables(&saved), "each replica's copy, too");
        // Of another width: the mean, converted.
        let wide = new(1, 3, DType::F64);
        model(&wide);
        let mean = |of: &Training<Sgd>| {
            let mean = of.model.variables.get("norm.running_mean").unwrap();
            mean.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
        };
        assert_eq!(mean(&wide), mean(&saved));
    });
}

/// Writes weights as other projects publish them: with other names, in bfloat16, in two files.
fn pretrained(folder: &Path) -> [std::path::PathBuf; 2] {
    let tensor = |value: f32, dims: &[usize], dtype| {
        Tensor::full(value, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    let files = [
        ("a", "bert.body.weight", tensor(1.5, &[5, 3], DType::BF16)),
        ("b", "bert.body.bias", tensor(2.5, &[5], DType::F32)),
    ];
    files.map(|(file, name, value)| {
        let path = folder.join(file);
        let other = tensor(0., &[7], DType::F32);
        save(&HashMap::from([(name.to_string(), value), (format!("cls.{file}"), other)]), &path).unwrap();
        path
    })
}

// INV-23
#[test]
fn weights_of_others_are_loaded_under_their_names() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let files = pretrained(folder.path());
        let mine = model(2, 1);
        let head = get(&mine, "head.weight");
        let bert = || RestoreFilter::named(|name| Some(format!("bert.{name}")));
        let error = refused(&mine, || mine.variables.load_some(&files, &bert()));
        assert!(error.contains("there is no bert.head.bias"), "{error}");
        let error = refused(&mine, || mine.variables.load_some([&files[0], &files[0]], &bert()));
        assert!(error.contains("both have"), "{error}");
        let error = refused(&mine, || mine.variables.load_some(&files, &RestoreFilter::all().lenient()));
        assert!(error.contains("0 of 4 set") && error.contains("not used: bert.body.bias"), "{error}");

        let within =
            mine.variables.strategy().run((), |_, ()| mine.variables.load_some(&files, &bert().lenient()));
        let within = within.unwrap_err().to_string();
        assert!(within.contains("load_some"), "{within}");

        let loaded = mine.variables.load_some(&files, &bert().lenient()).unwrap();
        let expected =
            (vec!["body.bias", "body.weight"], vec!["head.bias", "head.weight"], vec!["cls.a", "cls.b"]);
        assert_eq!(names(&loaded), expected);
        assert_eq!((get(&mine, "body.weight"), get(&mine, "body.bias")), (vec![1.5; 15], vec![2.5; 5]));
        assert_eq!(get(&mine, "head.weight"), head);
    });
}

// INV-24
#[cfg(unix)]
#[test]
fn conflicting_files_are_refused_and_leftovers_of_a_killed_save_are_removed() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mine = model(2, 1);
        let (pipe, link) = (at("pipe"), at("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for error in [mine.variables.save(&pipe), mine.variables.load(&pipe)].map(Result::unwrap_err) {
            assert!(
                error.to_string().contains("a named pipe") && error.to_string().contains("pipe"),
                "{error}"
            );
        }
        std::fs::write(at("precious"), "text").unwrap();
        std::os::unix::fs::symlink(at("precious"), &link).unwrap();
        std::fs::write(at(".link.distribute-0.part"), "left").unwrap();
        mine.variables.save(&link).unwrap();
        assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "text");
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["link", "pipe", "precious"]);
        model(2, 2).variables.load(&link).unwrap();
    });
}

#[test]
fn the_error_of_missing_files_names_them() {
    let error = model(3, 0).variables.load_some([""; 0], &RestoreFilter::all()).unwrap_err().to_string();
    assert!(error.contains("load_some: no file was given"), "{error}");
}

#[test]
fn concurrent_saves_to_one_path_leave_a_complete_file() {
    watched(|| {
        let (folder, path) = folder();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let model = model(3, seed);
                    for _ in 0..20 {
                        model.variables.save(path).unwrap();
                        model.variables.load(path).unwrap();
                    }
                });
            }
        });
        let other = folder.path().join("other");
        std::fs::write(&other, "").unwrap();
        let permissions = |path: &Path| std::fs::metadata(path).unwrap().permissions();
        assert_eq!(permissions(&path), permissions(&other), "others may read it as they may read any file");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    });
}

const KILLED: &str =
    "resume::partial::a_killed_save_leaves_the_old_file_and_the_next_save_removes_its_leftovers";

// INV-24
#[cfg(target_os = "linux")]
#[test]
fn a_killed_save_leaves_the_old_file_and_the_next_save_removes_its_leftovers() {
    use std::os::unix::fs::PermissionsExt;
    // More than 1 MiB.
    let large = || {
        distribute::MirroredStrategy::cpus(2)
            .unwrap()
            .replicate(|vb: VarBuilder| linear(600, 600, vb))
            .unwrap()
    };
    if let Some(path) = child::part() {
        large().variables.save(path).unwrap();
        return;
    }
    watched(move || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let names = || {
            let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        std::fs::write(&path, "old").unwrap();
        let permissions = path.metadata().unwrap().permissions().mode();
        // The system kills a process that makes a file larger than it may; the shell says so by a number above 128.
        let saves = child::command(KILLED, path.to_str().unwrap());
        let mut limited = std::process::Command::new("sh");
        limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        limited
            .args(["-c", r#"ulimit -f 64; "$0" "$@"; test $? -gt 128"#])
            .arg(saves.get_program())
            .args(saves.get_args());
        for (name, value) in saves.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            limited.env(name, value);
        }
        child::output(limited, std::time::Duration::from_secs(60));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert!(names().len() > 1, "it left nothing");
        large().variables.save(&path).unwrap();
        assert_eq!(names(), ["weights"]);
        assert_eq!(path.metadata().unwrap().permissions().mode(), permissions);
        large().variables.load(&path).unwrap();
    });
}
