//! The protobuf messages of a bundle and of the object graph, with the fields that are used.

/// The first value of an index: how the bundle was written.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(int32, tag = "1")]
    pub(crate) num_shards: i32,
    /// 0 for little-endian, 1 for big-endian.
    #[prost(int32, tag = "2")]
    pub(crate) endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) version: Option<Version>,
}

/// The version of the format in which a file was written, and the lowest version of a reader that can read it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Version {
    #[prost(int32, tag = "1")]
    pub(crate) producer: i32,
    #[prost(int32, tag = "2")]
    pub(crate) min_consumer: i32,
}

/// The location of a tensor or slice, or the list of the slices of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(int32, tag = "1")]
    pub(crate) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
    #[prost(int32, tag = "3")]
    pub(crate) shard_id: i32,
    #[prost(int64, tag = "4")]
    pub(crate) offset: i64,
    #[prost(int64, tag = "5")]
    pub(crate) size: i64,
    #[prost(fixed32, tag = "6")]
    pub(crate) crc32c: u32,
    #[prost(message, repeated, tag = "7")]
    pub(crate) slices: Vec<Slice>,
}

/// The size of each axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dims: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub(crate) unknown_rank: bool,
}

/// The size of an axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

/// The extent of a slice on each axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Slice {
    #[prost(message, repeated, tag = "1")]
    pub(crate) extents: Vec<Extent>,
}

/// A range of an axis. Without a length it is the complete axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Extent {
    #[prost(int64, tag = "1")]
    pub(crate) start: i64,
    #[prost(int64, optional, tag = "2")]
    pub(crate) length: Option<i64>,
}

/// The objects of a program and the tensors that each of them has saved.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ObjectGraph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Object>,
}

/// An object: its children, its tensors, and the slots of its variables if it is an optimizer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Object {
    #[prost(message, repeated, tag = "1")]
    pub(crate) children: Vec<Reference>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) slots: Vec<Slot>,
}

/// A child and its name in the parent.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reference {
    #[prost(int32, tag = "1")]
    pub(crate) node_id: i32,
    #[prost(string, tag = "2")]
    pub(crate) local_name: String,
}

/// A saved tensor of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) full_name: String,
    #[prost(string, tag = "3")]
    pub(crate) checkpoint_key: String,
}

/// A slot that an optimizer keeps for a variable. Slot and variable are given by the indices of their objects.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Slot {
    #[prost(int32, tag = "1")]
    pub(crate) variable: i32,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(int32, tag = "3")]
    pub(crate) slot: i32,
}
