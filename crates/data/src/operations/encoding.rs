//! The encoding of elements as bytes, for cache files.

use crate::file::ElementLimit;
use distribute_tensor::{DType, HostTensor, Leaf, Tree, codec};
use std::collections::BTreeMap;

/// The kind of the value that follows. A tensor consists of its dtype, shape and elements. A structure begins
/// with the number of its members.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    Tensor,
    None,
    List,
    Tuple,
    Dict,
}

/// Encodes an element. Returns a message if one of its leaves is not a host tensor.
pub(super) fn encode(element: &Tree<Leaf>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    put(element, &mut out)?;
    Ok(out)
}

fn put(tree: &Tree<Leaf>, out: &mut Vec<u8>) -> Result<(), String> {
    let members = |tag: Tag, members: &Vec<Tree<Leaf>>, out: &mut Vec<u8>| {
        out.push(tag as u8);
        put_len(members.len(), out);
        members.iter().try_for_each(|member| put(member, out))
    };
    match tree {
        Tree::Leaf(Leaf::Host(tensor)) => put_tensor(tensor, out),
        Tree::Leaf(other) => return Err(format!("{} is no host tensor", other.kind())),
        Tree::None => out.push(Tag::None as u8),
        Tree::List(items) => return members(Tag::List, items, out),
        Tree::Tuple(items) => return members(Tag::Tuple, items, out),
        Tree::Dict(items) => {
            out.push(Tag::Dict as u8);
            put_len(items.len(), out);
            for (name, item) in items {
                put_bytes(name.as_bytes(), out);
                put(item, out)?;
            }
        }
    }
    Ok(())
}

fn put_tensor(tensor: &HostTensor, out: &mut Vec<u8>) {
    out.push(Tag::Tensor as u8);
    put_bytes(tensor.dtype().name().as_bytes(), out);
    put_len(tensor.dims().len(), out);
    tensor.dims().iter().for_each(|size| put_len(*size, out));
    match tensor.as_slice::<Vec<u8>>() {
        Some(strings) => strings.iter().for_each(|string| put_bytes(string, out)),
        None => codec::append(tensor.buffer(), 0..tensor.len(), out),
    }
}

fn put_len(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(len as u64).to_le_bytes());
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// The reason why bytes cannot be decoded as an element.
#[derive(Debug, PartialEq)]
pub(super) enum Broken {
    /// The bytes are not exactly one encoded element.
    Not,
    /// The element needs more memory than the limit.
    TooLarge(String),
}

/// Decodes an element. No memory is allocated for bytes that do not exist. Structures that are encoded in few
/// bytes cannot take more memory than an element may take.
pub(super) fn decode(bytes: &[u8], limit: ElementLimit) -> Result<Tree<Leaf>, Broken> {
    let mut input = Bytes { rest: bytes, taken: 0, most: limit.bytes().max(LEAST) };
    let element = input.tree(MAX_DEPTH).filter(|_| input.rest.is_empty());
    match limit.of(input.most).check("the element", input.taken) {
        Err(what) => Err(Broken::TooLarge(what)),
        Ok(()) => element.ok_or(Broken::Not),
    }
}

/// The smallest limit in bytes that is enforced.
const LEAST: u64 = 1 << 20;

/// The memory in bytes of a tensor or a structure, without its elements or members.
const NODE: u64 = 192;

/// The memory in bytes of a string, without its contents.
const STRING: u64 = size_of::<Vec<u8>>() as u64;

/// The maximum nesting depth of structures. Without it, a file with very deeply nested structures would exhaust the
/// stack.
const MAX_DEPTH: usize = 128;

/// A reader of bytes that consumes them from the front.
struct Bytes<'a> {
    rest: &'a [u8],
    /// The memory in bytes of all values decoded so far.
    taken: u64,
    most: u64,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    /// Adds to the memory of the decoded values. Returns `None` once the limit is exceeded.
    fn count(&mut self, bytes: u64) -> Option<()> {
        self.taken = self.taken.saturating_add(bytes);
        (self.taken <= self.most).then_some(())
    }

    fn len(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take(size_of::<u64>())?.try_into().ok()?)).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }

    fn tree(&mut self, depth: usize) -> Option<Tree<Leaf>> {
        let depth = depth.checked_sub(1)?;
        self.count(NODE)?;
        let tag = *self.take(1)?.first()?;
        Some(match tag {
            t if t == Tag::Tensor as u8 => Tree::Leaf(Leaf::Host(self.tensor()?)),
            t if t == Tag::None as u8 => Tree::None,
            t if t == Tag::List as u8 => Tree::List(self.members(depth)?),
            t if t == Tag::Tuple as u8 => Tree::Tuple(self.members(depth)?),
            t if t == Tag::Dict as u8 => {
                let mut items = BTreeMap::new();
                for _ in 0..self.len()? {
                    let name = String::from_utf8(self.bytes()?.to_vec()).ok()?;
                    items.insert(name, self.tree(depth)?);
                }
                Tree::Dict(items)
            }
            _ => return None,
        })
    }

    fn members(&mut self, depth: usize) -> Option<Vec<Tree<Leaf>>> {
        (0..self.len()?).map(|_| self.tree(depth)).collect()
    }

    fn tensor(&mut self) -> Option<HostTensor> {
        let name = self.bytes()?;
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name().as_bytes() == name)?;
        let rank = self.len()?;
        let dims = (0..rank).map(|_| self.len()).collect::<Option<Vec<usize>>>()?;
        // The tensor refuses an invalid shape.
        let count = dims.iter().try_fold(1usize, |count, size| count.checked_mul(*size))?;
        match dtype.bytes() {
            Some(size) => {
                let bytes = self.take(count.checked_mul(size)?)?;
                self.count(bytes.len() as u64)?;
                HostTensor::from_buffer(codec::read(dtype, bytes).ok()?, dims).ok()
            }
            None => {
                let mut strings = Vec::new();
                for _ in 0..count {
                    let string = self.bytes()?;
                    self.count(STRING + string.len() as u64)?;
                    strings.push(string.to_vec());
                }
                HostTensor::new(strings, dims).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::Nest;
    use proptest::prelude::*;

    fn limit() -> ElementLimit {
        ElementLimit::new("limit")
    }

    /// Checks that a few bytes cannot create a large structure: each byte of a structure takes about a hundred bytes of
    /// memory.
    #[test]
    fn few_bytes_make_no_large_structure() {
        const NONES: usize = 100_000;
        let mut bytes = vec![Tag::List as u8];
        put_len(NONES, &mut bytes);
        bytes.extend([Tag::None as u8].repeat(NONES));
        assert!(decode(&bytes, limit()).is_ok());
        let refused = decode(&bytes, limit().of(1 << 20));
        assert!(matches!(&refused, Err(Broken::TooLarge(what)) if what.contains("1048576")), "{refused:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes, limit());
        }

        #[test]
        fn damaged_elements_are_none_or_others(at in 0usize..200, byte: u8) {
            type Element = (Vec<i64>, Option<String>, [f32; 2]);
            let element: Element = (vec![1, 2], Some("text".to_string()), [0.5; 2]);
            let mut bytes = encode(&element.clone().into_tree()).unwrap();
            assert_eq!(Element::from_tree(decode(&bytes, limit()).unwrap()).unwrap(), element);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode(&bytes, limit());
            assert!(decode(&bytes[..at], limit()).is_err());
        }
    }

    #[test]
    fn brackets_alone_do_not_exhaust_the_stack() {
        let mut bytes = Vec::new();
        for _ in 0..100_000 {
            bytes.push(Tag::List as u8);
            put_len(1, &mut bytes);
        }
        assert!(matches!(decode(&bytes, limit()), Err(Broken::Not)));
    }
}
