//! Many threads on one table.

use distribute_optim::{Sgd, Step};
use distribute_ps_tables::{DynamicOptions, DynamicTable, Initializer, Push, Table};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Write};
use distribute_testing::watched;
use std::sync::Arc;

// PSV2-8
#[test]
fn additions_of_many_threads_are_all_applied() {
    watched(|| {
        let table = Arc::new(Table::new("t", HostTensor::zeros(DType::I64, [40, 500]).unwrap()).unwrap());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let table = table.clone();
                std::thread::spawn(move || {
                    let all = HostTensor::new(vec![1i64; 40 * 500], [40, 500]).unwrap();
                    let rows = HostTensor::new(vec![1i64; 3 * 500], [3, 500]).unwrap();
                    for i in 0..50 {
                        table.write(Write::Add, &all).unwrap();
                        table.write_rows(Write::Add, &[i % 40, 7, 7], &rows).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut expected = vec![200i64; 40];
        for i in 0..200 {
            expected[i % 50 % 40] += 1;
            expected[7] += 2;
        }
        let found = table.read().unwrap().value;
        for (row, expected) in found.as_slice::<i64>().unwrap().chunks(500).zip(expected) {
            assert!(row.iter().all(|x| *x == expected));
        }
        assert_eq!(table.version(), 400);
    });
}

// INV-50
#[test]
fn a_read_of_all_is_between_two_writes_of_all() {
    watched(|| {
        let table = Arc::new(Table::new("t", HostTensor::zeros(DType::I64, [64, 1200]).unwrap()).unwrap());
        let writers: Vec<_> = (1i64..3)
            .map(|writer| {
                let table = table.clone();
                std::thread::spawn(move || {
                    for i in 0..60 {
                        let value = vec![1000 * writer + i; 64 * 1200];
                        table.write(Write::Assign, &HostTensor::new(value, [64, 1200]).unwrap()).unwrap();
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let read = table.read().unwrap();
            let value = read.value.as_slice::<i64>().unwrap();
            assert!(value.iter().all(|x| *x == value[0]), "{} and others", value[0]);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

// INV-51
#[test]
fn a_value_is_at_least_as_new_as_its_version() {
    watched(|| {
        let table = Arc::new(Table::new("t", HostTensor::zeros(DType::I64, [64, 1200]).unwrap()).unwrap());
        let writer = std::thread::spawn({
            let table = table.clone();
            move || {
                let one = HostTensor::new(vec![1i64; 64 * 1200], [64, 1200]).unwrap();
                // Each makes the value its version.
                (0..300).for_each(|_| table.write(Write::Add, &one).unwrap());
            }
        });
        while !writer.is_finished() {
            let read = table.read().unwrap();
            let value = read.value.as_slice::<i64>().unwrap()[64 * 1200 - 1];
            assert!(value >= read.version as i64, "{value} at version {}", read.version);
        }
        writer.join().unwrap();
        assert_eq!(table.version(), 300);
    });
}

#[test]
fn pushes_of_many_threads_are_all_applied() {
    watched(|| {
        let zeros = Initializer::new(Distribution::Constant(0.), 0, "users");
        let table = DynamicTable::new("users", &[4], DType::F64, zeros, DynamicOptions::default()).unwrap();
        table.set_rule(Arc::new(Sgd)).unwrap();
        let table = Arc::new(table);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let table = table.clone();
                std::thread::spawn(move || {
                    let ids: Vec<i64> = (0..400).collect();
                    let gradient = HostTensor::new(vec![-1f64; 1600], [400, 4]).unwrap();
                    for step in 0..25 {
                        table.push_rows(Push::at(Step::after(step, 1.)), &ids, &gradient).unwrap();
                        table.read_rows(&ids).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = table.read_rows(&(0..400).collect::<Vec<_>>()).unwrap();
        assert!(found.as_slice::<f64>().unwrap().iter().all(|x| *x == 100.));
    });
}
