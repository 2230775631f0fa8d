//! Tests of `#[derive(Nest)]` in typical use.

#![allow(clippy::unwrap_used, clippy::panic)]

use distribute_macros::Nest;
use distribute_tensor::{Error, HostTensor, Nest, Result, Tree};

#[derive(Nest, Clone, Debug, PartialEq)]
#[nest(crate = distribute_tensor)]
struct Batch<T> {
    inputs: T,
    labels: HostTensor,
    r#type: Option<u8>,
}

#[derive(Nest, Clone, Debug, PartialEq)]
#[nest(crate = ::distribute_tensor)]
struct Pair<A, B: Clone, const N: usize>(A, [B; N])
where
    A: PartialEq;

#[derive(Nest, Clone, Copy, Debug, PartialEq)]
#[nest(crate = distribute_tensor)]
struct Nothing;

#[derive(Nest, Clone, Copy, Debug, PartialEq)]
#[nest(crate = distribute_tensor)]
struct Empty {}

fn batch() -> Batch<Pair<f32, Nothing, 2>> {
    Batch { inputs: Pair(1.5, [Nothing; 2]), labels: HostTensor::vector(vec![1i64, 2]), r#type: None }
}

#[test]
fn named_fields_are_a_map_and_others_a_tuple() {
    let tree = batch().into_tree();
    assert_eq!(
        tree.describe(&|leaf| leaf.describe()),
        r#"{"inputs": (float32[], [(), ()]), "labels": int64[2], "type": None}"#
    );
    assert_eq!(Batch::from_tree(tree).unwrap(), batch());
    assert_eq!(Empty::from_tree(Empty {}.into_tree()).unwrap(), Empty {});
}

#[test]
fn errors_name_the_field() {
    type Other = Batch<Pair<i32, Nothing, 2>>;
    let text = Other::from_tree(batch().into_tree()).unwrap_err().to_string();
    assert!(
        text.starts_with("structures differ at value.inputs[0]: a scalar of int32 and float32"),
        "{text}"
    );

    let without = |name: &str| -> Result<Batch<Pair<f32, Nothing, 2>>> {
        let Tree::Dict(mut items) = batch().into_tree() else { unreachable!() };
        items.remove(name);
        Batch::from_tree(Tree::Dict(items))
    };
    let text = without("labels").unwrap_err().to_string();
    assert_eq!(text, "structures differ at value.labels: a field of this name and nothing");

    let Tree::Dict(mut items) = batch().into_tree() else { unreachable!() };
    items.insert("weights".into(), Tree::None);
    let text = Batch::<Pair<f32, Nothing, 2>>::from_tree(Tree::Dict(items)).unwrap_err().to_string();
    assert!(text.starts_with("structures differ at value.weights: one of the fields"), "{text}");

    match Pair::<f32, u8, 1>::from_tree((1.0f32, [2u8], 3u8).into_tree()) {
        Err(Error::Structure { path, expected, found }) => {
            assert_eq!(
                (path.as_str(), expected.as_str(), found.as_str()),
                ("value", "a tuple of 2", "a tuple of 3")
            );
        }
        other => panic!("{other:?}"),
    }
}
