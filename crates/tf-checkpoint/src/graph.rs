//! The object graph of a checkpoint: which object has saved which tensor.

use crate::proto::{Object, ObjectGraph};
use std::collections::{BTreeMap, VecDeque};

/// The key of the tensor with the object graph.
pub(crate) const KEY: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// The name that a variable gives its only tensor.
const VALUE: &str = "VARIABLE_VALUE";

/// Returns the key of the variable at `path`, if `path` is the one that its key contains.
pub(crate) fn key_of(path: &str) -> String {
    format!("{path}/.ATTRIBUTES/{VALUE}")
}

/// The maximum size of the tensor with the object graph in bytes. A graph has about a hundred bytes for each object.
pub(crate) const MAX_SIZE: usize = 256 << 20;

/// The maximum ratio of the total size of all paths to the size of the graph. It limits the memory that a forged
/// graph can take.
const MAX_RATIO: usize = 64;

/// A tensor of an object, with the path to the object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectPath {
    /// The shortest path to the object, such as `model/_operations/1/_kernel`; for a slot that no object has as a
    /// child, the path in its key.
    pub path: String,
    /// The name of the variable, such as `sequential/dense/kernel`. It is empty for an object that is no variable.
    pub full_name: String,
    /// The name of the tensor in the checkpoint, such as `model/_operations/1/_kernel/.ATTRIBUTES/VARIABLE_VALUE`.
    pub key: String,
}

/// The object graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: Vec<Object>,
    pub(crate) paths: Vec<ObjectPath>,
    /// The keys of the variables with each full name. Several variables can have the same name.
    names: BTreeMap<String, Vec<String>>,
}

impl Graph {
    /// Creates the graph from a message of `size` bytes. `has` returns whether the checkpoint contains a tensor;
    /// other tensors are left out.
    ///
    /// # Errors
    /// Returns the reason as text if the graph refers to an object that does not exist, or if its paths are too long.
    pub(crate) fn new(graph: ObjectGraph, size: usize, has: impl Fn(&str) -> bool) -> Result<Self, String> {
        let nodes = graph.nodes;
        let (mut paths, mut names) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
        let mut room = size.saturating_mul(MAX_RATIO);
        let mut seen = vec![false; nodes.len()];
        let mut queue = VecDeque::from([(0usize, String::new())]);
        seen.iter_mut().take(1).for_each(|root| *root = true);
        // Slots are objects that no other object has as a child.
        let mut slots = nodes.iter().flat_map(|node| &node.slots);
        loop {
            let (node, path) = match (queue.pop_front(), &mut slots) {
                (Some(next), _) => next,
                (None, slots) => match slots.next() {
                    None => break,
                    Some(slot) => {
                        let node = usize::try_from(slot.slot).unwrap_or(usize::MAX);
                        match seen.get_mut(node) {
                            None => {
                                return Err(format!("there is no object {} of {}", slot.slot, seen.len()));
                            }
                            Some(true) => continue,
                            Some(is_seen) => *is_seen = true,
                        }
                        let key = nodes.get(node).and_then(value).unwrap_or_default();
                        (node, object_of(key).to_string())
                    }
                },
            };
            let Some(object) = nodes.get(node) else { continue };
            for attribute in object.attributes.iter().filter(|attribute| has(&attribute.checkpoint_key)) {
                let (key, full_name) = (attribute.checkpoint_key.clone(), attribute.full_name.clone());
                room = room.checked_sub(path.len()).ok_or("the paths of its objects are too long")?;
                if !full_name.is_empty() {
                    names.entry(full_name.clone()).or_default().push(key.clone());
                }
                paths.push(ObjectPath { path: path.clone(), full_name, key });
            }
            for child in &object.children {
                let node = usize::try_from(child.node_id).ok();
                let (node, is_seen) = node
                    .and_then(|node| Some((node, seen.get_mut(node)?)))
                    .ok_or_else(|| format!("there is no object {} of {}", child.node_id, nodes.len()))?;
                if std::mem::replace(is_seen, true) {
                    continue;
                }
                let name = escaped(&child.local_name);
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                room = room.checked_sub(path.len()).ok_or("the paths of its objects are too long")?;
                queue.push_back((node, path));
            }
        }
        Ok(Self { nodes, paths, names })
    }

    /// Returns the key of the variable at `path`, which may be any of the paths to the variable. An object with a
    /// single tensor counts as a variable.
    pub(crate) fn by_path(&self, path: &str) -> Option<&str> {
        value(self.at(path)?)
    }

    /// Returns the object at `path`, which may be any of the paths to it.
    fn at(&self, path: &str) -> Option<&Object> {
        let mut node = self.nodes.first()?;
        for name in path.split('/') {
            let child = node.children.iter().find(|child| escaped(&child.local_name) == name)?;
            node = self.nodes.get(usize::try_from(child.node_id).ok()?)?;
        }
        Some(node)
    }

    /// Returns the keys of all variables with a full name.
    pub(crate) fn by_name(&self, name: &str) -> &[String] {
        self.names.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the name and the key of each slot that optimizers keep for the variable with this key. `optimizer` is
    /// the path of the object whose slots are returned; `None` returns those of all objects.
    pub(crate) fn slots<'a>(
        &'a self,
        key: &'a str,
        optimizer: Option<&str>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let key_of = |node: i32| value(self.nodes.get(usize::try_from(node).ok()?)?);
        let nodes = match optimizer {
            None => self.nodes.as_slice(),
            Some(path) => self.at(path).map(std::slice::from_ref).unwrap_or_default(),
        };
        let slots = nodes.iter().flat_map(|node| &node.slots);
        slots
            .filter(move |slot| key_of(slot.variable) == Some(key))
            .filter_map(move |slot| Some((slot.name.as_str(), key_of(slot.slot)?)))
    }
}

/// Returns the key of a variable's value, or of the only tensor of another object.
fn value(node: &Object) -> Option<&str> {
    let value = node.attributes.iter().find(|attribute| attribute.name == VALUE);
    match (value, node.attributes.as_slice()) {
        (Some(found), _) | (None, [found]) => Some(&found.checkpoint_key),
        _ => None,
    }
}

/// Returns the path of an object from the key of one of its tensors: the part before `/.ATTRIBUTES/`, or else the
/// complete key.
fn object_of(key: &str) -> &str {
    key.split_once("/.ATTRIBUTES/").map_or(key, |(path, _)| path)
}

/// Returns the name of an object in the form in which paths contain it.
fn escaped(name: &str) -> String {
    name.replace('.', "..").replace('/', ".S")
}
