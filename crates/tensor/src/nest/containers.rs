//! [`Nest`] for tuples, arrays, `Vec`, `Option` and maps.

use super::mismatch;
use crate::{DType, Leaf, Nest, Result, Tree};
use std::collections::{BTreeMap, HashMap};

impl<T: Nest> Nest for Vec<T> {
    type Batch = Vec<T::Batch>;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::List(self.into_iter().map(Nest::into_tree).collect())
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match tree {
            Tree::List(items) => {
                let item = |(i, t)| T::from_tree(t).map_err(|e| e.within(format_args!("[{i}]")));
                items.into_iter().enumerate().map(item).collect()
            }
            other => Err(mismatch("a list", &other.kind())),
        }
    }
}

impl<T: Nest, const N: usize> Nest for [T; N] {
    type Batch = [T::Batch; N];

    fn into_tree(self) -> Tree<Leaf> {
        Tree::List(self.into_iter().map(Nest::into_tree).collect())
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        let items = Vec::<T>::from_tree(tree)?;
        items
            .try_into()
            .map_err(|v: Vec<T>| mismatch(&format!("a list of {N}"), &format!("a list of {}", v.len())))
    }
    fn scalar_dtypes() -> Option<Tree<DType>> {
        Some(Tree::List(vec![T::scalar_dtypes()?; N]))
    }
}

impl<T: Nest> Nest for Option<T> {
    type Batch = Option<T::Batch>;

    fn into_tree(self) -> Tree<Leaf> {
        self.map_or(Tree::None, Nest::into_tree)
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match tree {
            Tree::None => Ok(None),
            some => T::from_tree(some).map(Some),
        }
    }
}

impl<T: Nest> Nest for BTreeMap<String, T> {
    type Batch = BTreeMap<String, T::Batch>;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Dict(self.into_iter().map(|(k, v)| (k, v.into_tree())).collect())
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match tree {
            Tree::Dict(items) => {
                let item = |(k, v)| match T::from_tree(v) {
                    Ok(v) => Ok((k, v)),
                    Err(e) => Err(e.within(format_args!(".{k}"))),
                };
                items.into_iter().map(item).collect()
            }
            other => Err(mismatch("a map", &other.kind())),
        }
    }
}

impl<T: Nest> Nest for HashMap<String, T> {
    type Batch = HashMap<String, T::Batch>;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Dict(self.into_iter().map(|(k, v)| (k, v.into_tree())).collect())
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        Ok(BTreeMap::from_tree(tree)?.into_iter().collect())
    }
}

macro_rules! tuples {
    ($($n:literal: $($t:ident $v:ident),*;)*) => {$(
        impl<$($t: Nest),*> Nest for ($($t,)*) {
            type Batch = ($($t::Batch,)*);

            fn into_tree(self) -> Tree<Leaf> {
                let ($($v,)*) = self;
                Tree::Tuple(vec![$($v.into_tree()),*])
            }
            #[allow(unused_mut, unused_variables)]
            fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
                let items = match tree {
                    Tree::Tuple(items) => items,
                    other => return Err(mismatch(concat!("a tuple of ", $n), &other.kind())),
                };
                let found = items.len();
                let mut items = items.into_iter().enumerate();
                let wrong = || mismatch(concat!("a tuple of ", $n), &format!("a tuple of {found}"));
                let out = ($({
                    let (i, item) = items.next().ok_or_else(wrong)?;
                    $t::from_tree(item).map_err(|e| e.within(format_args!("[{i}]")))?
                },)*);
                match items.next() {
                    Some(_) => Err(wrong()),
                    None => Ok(out),
                }
            }
            fn scalar_dtypes() -> Option<Tree<DType>> {
                Some(Tree::Tuple(vec![$($t::scalar_dtypes()?),*]))
            }
        }
    )*};
}
tuples! {
    "0": ;
    "1": A a;
    "2": A a, B b;
    "3": A a, B b, C c;
    "4": A a, B b, C c, D d;
    "5": A a, B b, C c, D d, E e;
    "6": A a, B b, C c, D d, E e, F f;
    "7": A a, B b, C c, D d, E e, F f, G g;
    "8": A a, B b, C c, D d, E e, F f, G g, H h;
    "9": A a, B b, C c, D d, E e, F f, G g, H h, I i;
    "10": A a, B b, C c, D d, E e, F f, G g, H h, I i, J j;
    "11": A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k;
    "12": A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k, L l;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;

    #[test]
    fn errors_name_where_in_the_structure() {
        type Wanted = BTreeMap<String, Vec<(f32, f32)>>;
        let tree = BTreeMap::from([("a".to_string(), vec![(1.0f32, 2.0f32), (3.0, 4.0)])]).into_tree();
        assert!(Wanted::from_tree(tree).is_ok());
        let tree = BTreeMap::from([("a".to_string(), vec![(1.0f32, 2i32)])]).into_tree();
        let text = Wanted::from_tree(tree).unwrap_err().to_string();
        assert!(
            text.starts_with("structures differ at value.a[0][1]: a scalar of float32 and int32"),
            "{text}"
        );
        let text = <(f32,)>::from_tree((1.0f32, 2.0f32).into_tree()).unwrap_err().to_string();
        assert_eq!(text, "structures differ at value: a tuple of 1 and a tuple of 2");
    }

    #[test]
    fn types_of_scalars_tell_their_dtypes() {
        type Row = (i64, [f32; 2], (bool, String), usize);
        let row: Row = (1, [0.5, 1.5], (true, "a".into()), 3);
        let dtypes = Row::scalar_dtypes().unwrap();
        assert_eq!(row.into_tree().try_map(&mut |leaf| leaf.dtype()).unwrap(), dtypes);
        assert_eq!(<(i64, HostTensor)>::scalar_dtypes(), None);
        assert_eq!((Vec::<i64>::scalar_dtypes(), Option::<i64>::scalar_dtypes()), (None, None));
        assert_eq!(HashMap::<String, i64>::scalar_dtypes(), None);
    }

    #[test]
    fn every_container_comes_back() {
        type All = (Vec<HostTensor>, [u8; 2], Option<bool>, Option<i64>, HashMap<String, String>, ());
        let make = || -> All {
            let map = HashMap::from([("k".to_string(), "v".to_string())]);
            (vec![HostTensor::scalar(1.5f32)], [1, 2], None, Some(-1), map, ())
        };
        assert_eq!(All::from_tree(make().into_tree()).unwrap(), make());
        assert_eq!(
            make().into_tree().describe(&Leaf::describe),
            r#"([float32[]], [uint8[], uint8[]], None, int64[], {"k": string[]}, ())"#
        );
    }
}
