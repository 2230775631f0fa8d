//! Tuples. Each item is split, reduced and gathered in the same way as outside the tuple.

use super::distributed::OPERATION;
use super::{Distributed, Parts, Reducible};
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_tensor::Tree;

macro_rules! tuples {
    ($($($t:ident $v:ident $i:tt),*;)*) => {$(
        impl<$($t: Distributed),*> Distributed for ($($t,)*) {
            type Local = ($($t::Local,)*);
            #[allow(unused_variables, unused_mut, clippy::unused_unit)]
            fn split(self, replicas: usize) -> Result<Vec<Self::Local>> {
                $(let mut $v = self.$i.split(replicas).map_err(|error| error.within(concat!(".", $i)))?.into_iter();)*
                let missing = || Error::invalid(OPERATION, "a value has too few parts");
                (0..replicas).map(|_| Ok(($($v.next().ok_or_else(missing)?,)*))).collect()
            }
            #[allow(unused_variables)]
            fn rows(&self, replica: usize) -> Option<usize> {
                [None, $(self.$i.rows(replica)),*].into_iter().flatten().min()
            }
            fn is_per_replica(&self) -> bool {
                [false, $(self.$i.is_per_replica()),*].contains(&true)
            }
            #[allow(unused_variables)]
            fn own_variables(&self, replica: usize) -> Vec<Var> {
                [Vec::new(), $(self.$i.own_variables(replica)),*].concat()
            }
        }

        impl<$($t: Reducible),*> Reducible for ($($t,)*) {
            type Nest = ($($t::Nest,)*);
            #[allow(unused_variables)]
            fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
                Ok(Tree::Tuple(vec![$(self.$i.into_parts(operation, replicas)?),*]))
            }
        }
    )*};
}
tuples! {
    ;
    A a 0;
    A a 0, B b 1;
    A a 0, B b 1, C c 2;
    A a 0, B b 1, C c 2, D d 3;
    A a 0, B b 1, C c 2, D d 3, E e 4;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9, K k 10;
    A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7, I i 8, J j 9, K k 10, L l 11;
}
