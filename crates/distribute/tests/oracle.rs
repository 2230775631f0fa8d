//! Runs cases whose expected results TensorFlow has computed: `cargo test -p distribute --test oracle [-- filter]`.
//!
//! Reads every `*.json` in `$ORACLE_DIR` (by default `tests/oracle/cases`). Each case runs or fails: there is no
//! skipping. A deliberate difference (`oracle/differences.rs`) names its rule, and the different behaviour is checked.
//! A filter selects the cases whose id contains it. `--differences` lists the cases of each difference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod oracle {
    pub mod all_reduce;
    pub mod arithmetic;
    pub mod batching;
    pub mod batching_differences;
    pub mod case;
    pub mod compare;
    pub mod coordinator;
    pub mod differences;
    pub mod errors;
    pub mod even;
    pub mod files;
    pub mod gather;
    pub mod multi_worker;
    pub mod partitioners;
    pub mod reduce;
    pub mod report;
    pub mod resolver_differences;
    pub mod resolvers;
    pub mod run;
    pub mod sharded;
    pub mod tensors;
    pub mod training;
    pub mod values_from_function;
    pub mod variable_differences;
    pub mod variables;
    pub mod verdict;
}

use oracle::case::{self, Case, Entry, Run};
use oracle::report::Report;
use oracle::verdict::{Verdict, compare_case};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// The runner of each area. A case of any other area fails.
const AREAS: [(&str, Run); 13] = [
    ("reduce", oracle::reduce::oracle_reduce),
    ("gather", oracle::gather::oracle_gather),
    ("all_reduce", oracle::all_reduce::oracle_all_reduce),
    ("run", oracle::run::oracle_run),
    ("values_from_function", oracle::values_from_function::oracle_values_from_function),
    ("variables", oracle::variables::oracle_variables),
    ("batching", oracle::batching::oracle_batching),
    ("training", oracle::training::oracle_training),
    ("multi_worker", oracle::multi_worker::oracle_multi_worker),
    ("resolvers", oracle::resolvers::oracle_resolvers),
    ("partitioners", oracle::partitioners::oracle_partitioners),
    ("sharded", oracle::sharded::oracle_sharded),
    ("coordinator", oracle::coordinator::oracle_coordinator),
];

fn main() -> ExitCode {
    distribute::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        AREAS.iter().for_each(|(area, _)| println!("oracle_{area}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));

    let mut report = Report::default();
    check_the_runner(&mut report);
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/cases");
    let folder = PathBuf::from(std::env::var_os("ORACLE_DIR").unwrap_or(here.into()));
    let cases = match case::read(&folder) {
        Ok(cases) => cases,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for Entry { area, id, case } in cases {
        if filter.is_some_and(|filter| !id.contains(filter.as_str())) {
            continue;
        }
        let run = AREAS.iter().find(|(known, _)| *known == area).map(|(_, run)| *run);
        let verdict = match case {
            Ok(case) => compare_case(case, run),
            Err(why) => Verdict::Failed(why),
        };
        report.add(&area, &id, verdict);
    }
    report.print(arguments.iter().any(|argument| argument == "--differences"));
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks that the runner fails on unknown input, and on an outcome that is not the expected one.
fn check_the_runner(report: &mut Report) {
    let sum = r#"{"id": "x", "area": "reduce", "doc": "", "replicas": 1, "expect": {"result": {"dtype": "int32", "shape":
        [], "data": [1]}}, "inputs": {"op": "reduce", "strategy": "mirrored", "reduce_op": "SUM", "axis": null,
        "values": [{"dtype": "int32", "shape": [], "data": [1]}]}}"#;
    let error = r#""expect_error": {"type": "ValueError", "why": ""}"#;
    let broken = [
        ("an unknown area", sum.replace(r#""area": "reduce""#, r#""area": "reduces""#)),
        ("an unknown op", sum.replace(r#""op": "reduce""#, r#""op": "reduces""#)),
        ("an unknown field", sum.replace(r#""doc""#, r#""docs""#)),
        ("an unknown field of the inputs", sum.replace(r#""axis": null"#, r#""axis": null, "axes": null"#)),
        ("an unknown dtype", sum.replace("int32", "int4")),
        ("an unknown strategy", sum.replace("mirrored", "tpu")),
        ("an unknown field of a tensor", sum.replace(r#""shape""#, r#""layout": 0, "shape""#)),
        ("an unknown expectation", sum.replace(r#""result""#, r#""results""#)),
        ("another value", sum.replace(r#""data": [1]}}, "inputs""#, r#""data": [2]}}, "inputs""#)),
        ("another dtype", sum.replacen("int32", "int64", 1)),
        ("another shape", sum.replace(r#"[], "data": [1]}}, "inputs""#, r#"[1], "data": [1]}}, "inputs""#)),
        ("an error that does not come", {
            let (head, tail) = sum.split_once(r#""expect": "#).unwrap();
            format!("{head}{error}, {}", tail.split_once("}}, ").unwrap().1)
        }),
        ("an error that should not come", sum.replace("SUM", "MAX")),
        ("an unknown type of error", {
            let (head, tail) = sum.split_once(r#""expect": "#).unwrap();
            let tail = tail.split_once("}}, ").unwrap().1.replace("SUM", "MAX");
            format!("{head}{}, {tail}", error.replace("ValueError", "OddError"))
        }),
    ];
    let rows = |values: [i32; 2], indices: [i64; 2], whole: Option<[usize; 2]>| {
        json!({
            "indexed_slices": true,
            "values": {"dtype": "int32", "shape": [2, 1], "data": values},
            "indices": {"dtype": "int64", "shape": [2], "data": indices},
            "dense_shape": whole,
        })
    };
    let given = rows([1, 2], [1, 0], None);
    let slices = |wanted: Value| {
        let mut case: Value = serde_json::from_str(sum).unwrap();
        case["expect"]["result"] = wanted;
        case["inputs"]["values"][0] = given.clone();
        case.to_string()
    };
    let broken = broken.into_iter().chain([
        ("another row", slices(rows([1, 3], [1, 0], None))),
        ("a row elsewhere", slices(rows([1, 2], [1, 2], None))),
        ("rows that should be one", slices(rows([1, 2], [1, 1], None))),
        ("rows of another whole", slices(rows([1, 2], [1, 0], Some([2, 1])))),
    ]);
    let range = json!({
        "id": "x", "area": "batching", "doc": "", "replicas": 3,
        "inputs": {"op": "distribute_dataset", "strategy": "mirrored", "n": 4, "global_batch": 4, "drop_remainder": false},
        "expect": {"steps": [[[0, 1], [2, 3], []]]},
    })
    .to_string();
    let broken = broken.chain([
        ("a step cut by another rule", range.replace("[0,1],[2,3],[]", "[0,1],[2],[3]")),
        ("a step without its last id", range.replace("[2,3]", "[2]")),
        ("an unknown policy", range.replace(r#""n":4"#, r#""n":4,"policy":"SOME""#)),
    ]);
    let simple = json!({
        "id": "x", "area": "resolvers", "doc": "", "replicas": 1,
        "inputs": {"op": "simple", "ctor": {"cluster": {"worker": ["h:1"]}}, "master_calls": [["worker", 1]]},
        "expect": {"task_id": {"ok": null}, "master_calls": [{"error": {"type": "ValueError", "why": ""}}],
            "cluster_spec": {"ok": {"worker": ["h:1"]}}},
    })
    .to_string();
    let broken = broken.chain([
        ("another address", simple.replace(r#"{"ok":{"worker":["h:1"]}}"#, r#"{"ok":{"worker":["h:2"]}}"#)),
        ("a property that should be an error", simple.replace(r#"[["worker",1]]"#, r#"[["worker",0]]"#)),
        (
            "a property that should be no error",
            simple.replace(r#"[{"error":{"type":"ValueError","why":""}}]"#, "[{\"ok\":\"h:1\"}]"),
        ),
        ("an unknown class of a property", simple.replace("ValueError", "OddError")),
        ("an unknown argument", simple.replace(r#""ctor":{"#, r#""ctor":{"tpu":1,"#)),
    ]);
    let cut = json!({
        "id": "x", "area": "partitioners", "doc": "", "replicas": 1,
        "inputs": {"op": "partition", "partitioner": "FixedShardsPartitioner", "args": {"num_shards": 2},
            "shape": [6, 1], "dtype": "float32", "axis": 0},
        "expect": {"partitions": [2, 1]},
    })
    .to_string();
    let broken = broken.chain([
        ("another number of shards", cut.replace("[2,1]", "[3,1]")),
        ("an unknown partitioner", cut.replace("Fixed", "Odd")),
        (
            "an unknown argument of a partitioner",
            cut.replace(r#""num_shards":2"#, r#""num_shards":2,"seed":1"#),
        ),
    ]);
    let sliced = json!({
        "id": "x", "area": "sharded", "doc": "", "replicas": 1,
        "inputs": {"op": "slice", "num_shards": 2, "slice": [{"slice": [null, null, 2]}],
            "table": {"dtype": "int32", "shape": [3], "data": [1, 2, 3]}},
        "expect": {"result": {"dtype": "int32", "shape": [2], "data": [1, 3]}},
    })
    .to_string();
    let broken = broken.chain([
        ("another slice", sliced.replace("[null,null,2]", "[null,null,-2]")),
        ("an unknown index", sliced.replace(r#"{"slice":[null,null,2]}"#, r#""all""#)),
    ]);
    let verdict = |text: &str| {
        let case = Case::parse(&serde_json::from_str(text).unwrap())?;
        let run = AREAS.iter().find(|(area, _)| *area == case.area).map(|(_, run)| *run);
        match compare_case(case, run) {
            Verdict::Failed(why) => Err(why),
            _ => Ok(()),
        }
    };
    let whole = [
        ("what TensorFlow gave", sum.into()),
        ("its rows", slices(given.clone())),
        ("its steps", range.clone()),
        ("its cluster", simple.clone()),
        ("its shards", cut.clone()),
        ("its slice", sliced.clone()),
    ];
    for (what, text) in whole {
        let passes = match verdict(&text) {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::Failed(why),
        };
        report.add("runner", &format!("runner/accepts/{what}"), passes);
    }
    for (what, text) in broken {
        let refused = match verdict(&text) {
            Ok(()) => Verdict::Failed("passed".into()),
            Err(_) => Verdict::Passed,
        };
        report.add("runner", &format!("runner/refuses/{what}"), refused);
    }
}

/// Compiled only if the target has lost its `harness = false`: then `main` would not be called, and nothing would run.
#[test]
fn the_target_needs_harness_false() {
    panic!(
        "crates/distribute/Cargo.toml needs [[test]] name = \"oracle\", harness = false: without it no case runs"
    );
}
