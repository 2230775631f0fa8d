//! Collects rows of a CSV file as columns of tensors.

use super::missing::{Filled, Missing};
use crate::{ElementSpec, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Tree};

/// The type of the fields of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Numbers: `float32`.
    F32,
    /// Integers: `int64`.
    I64,
    /// Text: `string`, with the bytes of the file.
    Text,
}

/// The form of an element.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// All columns: one vector of `float32`.
    Features,
    /// A vector of all columns but one, and that one as `int64`.
    Labelled { label: usize },
    /// Named scalars: name, position and type of each column.
    Columns(Vec<(String, usize, ColumnType)>),
}

impl ColumnType {
    fn dtype(self) -> DType {
        match self {
            ColumnType::F32 => DType::F32,
            ColumnType::I64 => DType::I64,
            ColumnType::Text => DType::String,
        }
    }
}

impl Layout {
    /// Returns the type of the fields at a position, if they are read.
    pub(super) fn kind(&self, place: usize) -> Option<ColumnType> {
        match self {
            Layout::Features => Some(ColumnType::F32),
            Layout::Labelled { label } if *label == place => Some(ColumnType::I64),
            Layout::Labelled { .. } => Some(ColumnType::F32),
            Layout::Columns(columns) => {
                columns.iter().find(|(_, at, _)| *at == place).map(|(.., kind)| *kind)
            }
        }
    }

    /// Returns the spec of an element, for rows of `width` columns.
    pub(crate) fn spec(&self, width: usize) -> ElementSpec {
        let vector = |width| Tree::Leaf(TensorSpec::new(DType::F32, [width]));
        let scalar = |dtype| Tree::Leaf(TensorSpec::scalar(dtype));
        match self {
            Layout::Features => vector(width),
            Layout::Labelled { .. } => Tree::Tuple(vec![vector(width.saturating_sub(1)), scalar(DType::I64)]),
            Layout::Columns(columns) => {
                let column =
                    |(name, _, kind): &(String, usize, ColumnType)| (name.clone(), scalar(kind.dtype()));
                Tree::Dict(columns.iter().map(column).collect())
            }
        }
    }
}

/// Several rows, stored by column, before they become tensors.
pub(crate) struct Block<'a> {
    layout: &'a Layout,
    missing: &'a Missing,
    width: usize,
    rows: usize,
    features: Vec<f32>,
    labels: Vec<i64>,
    columns: Vec<Fields>,
}

/// The destination of rows of numbers.
pub(crate) struct Numbers<'a> {
    pub(crate) width: usize,
    /// The position of the integer column.
    pub(crate) label: Option<usize>,
    pub(crate) rows: &'a mut usize,
    pub(crate) features: &'a mut Vec<f32>,
    pub(crate) labels: &'a mut Vec<i64>,
}

/// The fields of one column.
enum Fields {
    F32(Vec<f32>),
    I64(Vec<i64>),
    Text(Vec<Vec<u8>>),
}

/// A field that is not of its column's type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadField {
    pub(crate) column: usize,
    pub(crate) expected: &'static str,
}

impl<'a> Block<'a> {
    pub(super) fn new(layout: &'a Layout, missing: &'a Missing, width: usize) -> Self {
        let columns = match layout {
            Layout::Features | Layout::Labelled { .. } => Vec::new(),
            Layout::Columns(columns) => columns
                .iter()
                .map(|(_, _, kind)| match kind {
                    ColumnType::F32 => Fields::F32(Vec::new()),
                    ColumnType::I64 => Fields::I64(Vec::new()),
                    ColumnType::Text => Fields::Text(Vec::new()),
                })
                .collect(),
        };
        Self { layout, missing, width, rows: 0, features: Vec::new(), labels: Vec::new(), columns }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the destination of rows of plain numbers, and the position of the label; `None` for named
    /// columns.
    pub(crate) fn numbers(&mut self) -> Option<Numbers<'_>> {
        let label = match self.layout {
            Layout::Features => None,
            Layout::Labelled { label } => Some(*label),
            Layout::Columns(_) => return None,
        };
        let Self { features, labels, rows, .. } = self;
        Some(Numbers { width: self.width, label, rows, features, labels })
    }

    /// Adds a row of the right width. Adds nothing if a field is bad.
    pub(crate) fn push(&mut self, record: &::csv::ByteRecord) -> Result<(), BadField> {
        let added = self.add(record);
        match added {
            Ok(()) => self.rows += 1,
            Err(_) => self.discard(),
        }
        added
    }

    fn add(&mut self, record: &::csv::ByteRecord) -> Result<(), BadField> {
        let missing = self.missing;
        match self.layout {
            Layout::Features => {
                for (column, field) in record.iter().enumerate() {
                    self.features.push(f32_field(column, field, missing)?);
                }
            }
            Layout::Labelled { label } => {
                for (column, field) in record.iter().enumerate() {
                    if column == *label {
                        self.labels.push(i64_field(column, field, missing)?)
                    } else {
                        self.features.push(f32_field(column, field, missing)?)
                    }
                }
            }
            Layout::Columns(columns) => {
                for ((_, place, _), fields) in columns.iter().zip(&mut self.columns) {
                    let field = record.get(*place).unwrap_or_default();
                    match fields {
                        Fields::F32(fields) => fields.push(f32_field(*place, field, missing)?),
                        Fields::I64(fields) => fields.push(i64_field(*place, field, missing)?),
                        Fields::Text(fields) => fields.push(match missing.stand_in(*place, field) {
                            Some(Filled::Text(text)) => text.clone(),
                            _ => field.to_vec(),
                        }),
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the fields of a bad row.
    fn discard(&mut self) {
        let rows = self.rows;
        let width = match self.layout {
            Layout::Labelled { .. } => self.width.saturating_sub(1),
            _ => self.width,
        };
        self.features.truncate(rows * width);
        self.labels.truncate(rows);
        for fields in &mut self.columns {
            match fields {
                Fields::F32(fields) => fields.truncate(rows),
                Fields::I64(fields) => fields.truncate(rows),
                Fields::Text(fields) => fields.truncate(rows),
            }
        }
    }

    /// Returns the rows as one batch.
    pub(crate) fn finish(self) -> distribute_tensor::Result<Tree<Leaf>> {
        let rows = self.rows;
        Ok(match self.layout {
            Layout::Features => matrix(self.features, rows, self.width)?,
            Layout::Labelled { .. } => {
                let features = matrix(self.features, rows, self.width.saturating_sub(1))?;
                Tree::Tuple(vec![features, leaf(HostTensor::vector(self.labels))])
            }
            Layout::Columns(columns) => {
                let vectors = self.columns.into_iter().map(|fields| match fields {
                    Fields::F32(fields) => vector(fields),
                    Fields::I64(fields) => vector(fields),
                    Fields::Text(fields) => vector(fields),
                });
                Tree::Dict(columns.iter().map(|(name, ..)| name.clone()).zip(vectors).collect())
            }
        })
    }
}

fn matrix(elements: Vec<f32>, rows: usize, columns: usize) -> distribute_tensor::Result<Tree<Leaf>> {
    Ok(leaf(HostTensor::new(elements, [rows, columns])?))
}

fn vector<T: distribute_tensor::Element>(elements: Vec<T>) -> Tree<Leaf> {
    leaf(HostTensor::vector(elements))
}

fn leaf(tensor: HostTensor) -> Tree<Leaf> {
    Tree::Leaf(Leaf::Host(tensor))
}

fn f32_field(column: usize, field: &[u8], missing: &Missing) -> Result<f32, BadField> {
    match missing.stand_in(column, field) {
        Some(Filled::F32(value)) => Ok(*value),
        _ => parse(field).ok_or(BadField { column, expected: "a number (float32)" }),
    }
}

fn i64_field(column: usize, field: &[u8], missing: &Missing) -> Result<i64, BadField> {
    match missing.stand_in(column, field) {
        Some(Filled::I64(value)) => Ok(*value),
        _ => parse(field).ok_or(BadField { column, expected: "an integer (int64)" }),
    }
}

/// Parses a field as a number, with or without spaces around it.
pub(crate) fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}
