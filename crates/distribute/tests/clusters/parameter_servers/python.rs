//! Files of parameter servers, read by Python with safetensors and NumPy: `DISTRIBUTE_PEER_PYTHON=/path/to/python
//! cargo test -p distribute --test clusters python`.

use crate::parameter_servers::support::{Net, servers, state, train};
use distribute::optimizer::rules::{Adagrad, Adam, Step};
use distribute::parameter_server::{DynamicOptions, Initializer};
use distribute::tensor::DType;
use distribute::tensor::random::Distribution;
use distribute::{Checkpoint, HostTensor, Optimizer};
use distribute_optim::RuleSpec;
use distribute_ps_server::{ParameterServer, ServerOptions};
use distribute_ps_tables::{Contents, Push, Request, TableSpec};
use distribute_testing::child;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program that prints all tensors of each file in a folder and its subfolders: name, dtype, number of elements, and
/// sum of bytes.
const READ: &str = r#"
import pathlib, sys
from safetensors.numpy import load_file
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.safetensors")):
    for name, tensor in load_file(path).items():
        print(name, tensor.dtype, tensor.size, sum(tensor.tobytes()))
"#;

/// Returns what the program prints for each tensor: the name, and the dtype, number of elements and sum of bytes.
fn read(python: &OsStr, folder: &Path) -> Vec<(String, (String, usize, u64))> {
    let mut command = Command::new(python);
    command.args(["-c", READ]).arg(folder);
    let (text, _) = child::output(command, Duration::from_secs(120));
    let line = |line: &str| {
        let [name, dtype, elements, sum] =
            <[&str; 4]>::try_from(line.split(' ').collect::<Vec<_>>()).unwrap();
        (name.to_owned(), (dtype.to_owned(), elements.parse().unwrap(), sum.parse().unwrap()))
    };
    text.lines().map(line).collect()
}

/// Returns the dtype, number of elements and sum of bytes that the program prints for a `float32` tensor with the given
/// bits.
fn expected(bits: &[u32]) -> (String, usize, u64) {
    let sum = bits.iter().flat_map(|bits| bits.to_le_bytes()).map(u64::from).sum();
    ("float32".to_owned(), bits.len(), sum)
}

// CKPT-4
#[test]
fn python_reads_every_file() {
    let Some(python) = std::env::var_os("DISTRIBUTE_PEER_PYTHON") else {
        println!("skipped: DISTRIBUTE_PEER_PYTHON names no Python with safetensors");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for shards in [1, 2, 3, 5, 8] {
        let strategy = servers(shards, shards);
        let model = strategy.replicate_seeded(7, Net::new).unwrap();
        let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.05).unwrap();
        train(&strategy, &model, &optimizer, 0..2);
        let path = folder.path().join(format!("of_{shards}"));
        Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer).save(&path).unwrap();
        let found: BTreeMap<_, _> = read(&python, &path).into_iter().collect();
        for (name, bits) in state(&model, &optimizer) {
            let name = match name.split_once(' ') {
                Some((variable, slot)) => format!("optimizer/{slot}/{variable}"),
                None => format!("model/{name}"),
            };
            assert_eq!(found[&name], expected(&bits), "{name} of {shards} shards");
        }
    }

    // What a server keeps for itself, rows of ids among it.
    let server = ParameterServer::open(ServerOptions::new(folder.path().join("ps-0"))).unwrap();
    let values = HostTensor::vector(vec![1f32, 2.]);
    let rule = RuleSpec::Adagrad(Adagrad::default());
    let ids = Contents::Dynamic {
        row_shape: vec![2],
        dtype: DType::F32,
        initializer: Initializer::new(Distribution::Constant(1.), 7, "ids"),
        options: DynamicOptions::default(),
    };
    let gradient = HostTensor::new(vec![1f32; 4], [2, 2]).unwrap();
    let push = Push::at(Step::after(0, 0.5));
    for request in [
        Request::Create(TableSpec::values("dense", values).rule(rule.clone())),
        Request::Create(TableSpec { name: "ids".into(), contents: ids, rule: Some(rule), rounding: None }),
        Request::PushRows { table: "ids".into(), push, rows: vec![-7, 1 << 40], gradient },
    ] {
        server.tables().handle(&request).unwrap();
    }
    server.snapshot().unwrap();
    let found = read(&python, &folder.path().join("ps-0"));
    let dense = expected(&[1f32, 2.].map(f32::to_bits));
    assert!(found.iter().any(|(_, tensor)| *tensor == dense), "{found:?}");
    let ids = found.iter().filter(|(_, (dtype, ..))| dtype == "int64");
    assert_eq!(ids.map(|(_, (_, elements, _))| elements).sum::<usize>(), 2);
}
