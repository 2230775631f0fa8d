//! The header of an array: its dtype, order and shape as a Python literal.

use crate::Result;
use crate::file::Input;
use distribute_tensor::{DType, HostTensor};
use std::io::Read;

/// The first bytes of every `.npy` file.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// The alignment in bytes of the elements in files that this crate writes, as in NumPy.
const ALIGNMENT: usize = 64;

/// The maximum length of a header in bytes. The shape in a longer one could exhaust the memory. (NumPy itself reads up
/// to 10,000 bytes.)
const MAX_LENGTH: u64 = 1 << 20;

/// The parsed header of an array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) big_endian: bool,
    /// The width of each string; `None` for numbers.
    pub(super) text: Option<Text>,
    /// Whether the elements are in column-major order.
    pub(super) fortran: bool,
    pub(super) shape: Vec<usize>,
}

/// The width of each string of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Text {
    /// The number of characters.
    pub(super) characters: usize,
    /// Whether a character is Unicode with 4 bytes, rather than a single byte.
    pub(super) unicode: bool,
}

impl Text {
    /// Returns the width in bytes; `None` if it overflows.
    pub(super) fn bytes(self) -> Option<usize> {
        self.characters.checked_mul(if self.unicode { 4 } else { 1 })
    }
}

/// The dtypes that this crate and NumPy have in common, with NumPy's codes.
const CODES: [(DType, &str); 14] = [
    (DType::Bool, "b1"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::F16, "f2"),
    (DType::F32, "f4"),
    (DType::F64, "f8"),
    (DType::C64, "c8"),
    (DType::C128, "c16"),
];

impl Header {
    /// Creates the header for a tensor that is to be written. Returns an error if NumPy does not have its dtype.
    pub(super) fn of(tensor: &HostTensor) -> Result<Self> {
        let dtype = tensor.dtype();
        if CODES.iter().any(|(known, _)| *known == dtype) {
            let shape = tensor.dims().to_vec();
            Ok(Self { dtype, big_endian: false, text: None, fortran: false, shape })
        } else {
            let operation = "write_npy";
            Err(distribute_tensor::Error::UnsupportedDType { operation, dtype }.into())
        }
    }

    /// Encodes the header: all bytes up to the first element.
    pub(super) fn encode(&self) -> Vec<u8> {
        let code = CODES.iter().find(|(dtype, _)| *dtype == self.dtype).map_or("", |(_, code)| code);
        let order = match (self.dtype.bytes(), self.big_endian) {
            (Some(1), _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let comma = if sizes.len() == 1 { "," } else { "" };
        let fortran = if self.fortran { "True" } else { "False" };
        let mut text = format!(
            "{{'descr': '{order}{code}', 'fortran_order': {fortran}, 'shape': ({}{comma}), }}",
            sizes.join(", ")
        );
        // The length field of version 1 allows less than 64 KiB, that of version 2 any length.
        let long = text.len() + 2 * ALIGNMENT > usize::from(u16::MAX);
        let before = MAGIC.len() + if long { 6 } else { 4 };
        let padded = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
        text.push_str(&" ".repeat(padded - 1 - text.len()));
        text.push('\n');
        let (version, len) = if long {
            (2, (text.len() as u32).to_le_bytes().to_vec())
        } else {
            (1, (text.len() as u16).to_le_bytes().to_vec())
        };
        [MAGIC, &[version, 0], &len, text.as_bytes()].concat()
    }

    /// Reads a header, that is, all bytes up to the first element.
    pub(super) fn read(input: &mut Input<impl Read>) -> Result<Self> {
        if input.array::<6>()? != MAGIC {
            return Err(input.damaged_at(0, "this is not a .npy file: it does not begin with \\x93NUMPY"));
        }
        let [major, minor] = input.array()?;
        let len = match (major, minor) {
            (1, 0) => u64::from(u16::from_le_bytes(input.array()?)),
            (2 | 3, 0) => u64::from(u32::from_le_bytes(input.array()?)),
            _ => return Err(input.damaged(format!("version {major}.{minor} of the format is not known"))),
        };
        if len > MAX_LENGTH {
            return Err(
                input.damaged(format!("a header of {len} bytes; no shape needs more than {MAX_LENGTH}"))
            );
        }
        let start = input.offset();
        let text = input.bytes(len)?;
        let mut literal = Literal { text: &text, next: 0 };
        literal
            .header()
            .map_err(|expected| input.damaged_at(start + literal.next as u64, format!("expected {expected}")))
    }
}

/// A parser of the Python dictionary in a header.
struct Literal<'a> {
    text: &'a [u8],
    next: usize,
}

/// The parsed value, or a description of the token that was expected at `next`.
type Parsed<T> = std::result::Result<T, &'static str>;

impl<'a> Literal<'a> {
    fn header(&mut self) -> Parsed<Header> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.token(b"{").ok_or("a dictionary: {'descr': …}")?;
        while self.token(b"}").is_none() {
            let key = self.string().ok_or("a key in quotes")?;
            self.token(b":").ok_or("a colon")?;
            let twice = match key {
                b"descr" => descr.replace(self.descr()?).is_some(),
                b"fortran_order" => fortran.replace(self.bool().ok_or("True or False")?).is_some(),
                b"shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err("no keys but 'descr', 'fortran_order' and 'shape'"),
            };
            if twice {
                return Err("each key once");
            }
            if self.token(b",").is_none() {
                self.token(b"}").ok_or("a comma or the dictionary's end")?;
                break;
            }
        }
        self.blanks();
        if self.next < self.text.len() {
            return Err("nothing after the dictionary but blanks");
        }
        let (dtype, big_endian, text) = descr.ok_or("a key 'descr'")?;
        let (fortran, shape) = (fortran.ok_or("a key 'fortran_order'")?, shape.ok_or("a key 'shape'")?);
        Ok(Header { dtype, big_endian, text, fortran, shape })
    }

    fn blanks(&mut self) {
        let rest = self.text.get(self.next..).unwrap_or_default();
        self.next += rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
    }

    /// Skips blanks and then `token`; `None` if something else comes next.
    fn token(&mut self, token: &[u8]) -> Option<()> {
        self.blanks();
        self.text.get(self.next..)?.starts_with(token).then(|| self.next += token.len())
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        self.blanks();
        let rest = self.text.get(self.next..)?;
        let quote = *rest.first().filter(|q| b"'\"".contains(q))?;
        let rest = rest.get(1..)?;
        let len = rest.iter().position(|b| *b == quote)?;
        self.next += len + 2;
        rest.get(..len)
    }

    fn bool(&mut self) -> Option<bool> {
        let yes = self.token(b"True").map(|()| true);
        yes.or_else(|| self.token(b"False").map(|()| false))
    }

    /// Parses a dtype. Returns the dtype, whether elements are big-endian, and the width of strings.
    fn descr(&mut self) -> Parsed<(DType, bool, Option<Text>)> {
        const KNOWN: &str = "the code of a bool, integer, float, complex or text dtype, such as '<f4'";
        self.blanks();
        let start = self.next;
        let known = self.string().and_then(|descr| {
            let (order, code) = descr.split_first()?;
            let (kind, width) = code.split_first()?;
            if let (b'U', b'<' | b'>') | (b'S', b'|') = (kind, order) {
                let characters = std::str::from_utf8(width).ok()?.parse().ok().filter(|width| *width > 0)?;
                return Some((
                    DType::String,
                    *order == b'>',
                    Some(Text { characters, unicode: *kind == b'U' }),
                ));
            }
            let (dtype, _) = *CODES.iter().find(|(_, known)| known.as_bytes() == code)?;
            match order {
                b'|' if dtype.bytes() == Some(1) => Some((dtype, false, None)),
                b'<' => Some((dtype, false, None)),
                b'>' => Some((dtype, true, None)),
                b'=' => Some((dtype, cfg!(target_endian = "big"), None)),
                _ => None,
            }
        });
        known.ok_or_else(|| {
            self.next = start;
            KNOWN
        })
    }

    fn shape(&mut self) -> Parsed<Vec<usize>> {
        let mut shape = Vec::new();
        self.token(b"(").ok_or("a shape: (2, 3)")?;
        while self.token(b")").is_none() {
            shape.push(self.size().ok_or("the size of an axis")?);
            if self.token(b",").is_none() {
                self.token(b")").ok_or("a comma or the shape's end")?;
                break;
            }
        }
        Ok(shape)
    }

    fn size(&mut self) -> Option<usize> {
        self.blanks();
        let rest = self.text.get(self.next..)?;
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let size = std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()?;
        self.next += digits;
        // Python 2 wrote long integers with this suffix.
        let _ = self.token(b"L");
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Parsed<Header> {
        Literal { text: text.as_bytes(), next: 0 }.header()
    }

    #[test]
    fn a_header_round_trips_and_is_aligned() {
        for (dtype, _) in CODES {
            for shape in [vec![], vec![7], vec![0, 3], vec![1; 30_000]] {
                let header = Header { dtype, big_endian: false, text: None, fortran: false, shape };
                let bytes = header.encode();
                assert_eq!(bytes.len() % ALIGNMENT, 0);
                let mut input = Input::new("a".into(), &bytes[..]);
                assert_eq!(Header::read(&mut input).unwrap(), header);
                input.end().unwrap();
            }
        }
    }

    #[test]
    fn other_ways_to_write_the_same() {
        let (dtype, shape) = (DType::I16, vec![3, 4]);
        let expected = Header { dtype, big_endian: true, text: None, fortran: true, shape };
        for text in [
            "{'descr': '>i2', 'fortran_order': True, 'shape': (3, 4), }   \n",
            "{'shape':(3,4),\"descr\":\">i2\",'fortran_order':True}",
            " { 'shape' : ( 3L , 4L , ) , 'fortran_order' : True , 'descr' : '>i2' , } ",
        ] {
            assert_eq!(parse(text), Ok(expected.clone()), "{text}");
        }
    }

    #[test]
    fn errors_name_their_position() {
        let at = |text: &str| {
            let mut bytes = [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
            bytes.push(0);
            Header::read(&mut Input::new("x.npy".into(), &bytes[..])).unwrap_err().to_string()
        };
        let known = "expected the code of a bool, integer, float, complex or text dtype, such as '<f4'";
        for descr in ["'<U'", "'<U0'", "'|U3'", "'<M8[ns]'", "'|O'", "'|i4'", "[('x', '<f4')]", "''", "'f4'"]
        {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ()}}");
            assert_eq!(at(&text), format!("'x.npy', byte 20: {known}"));
        }
        assert_eq!(at("x"), "'x.npy', byte 10: expected a dictionary: {'descr': …}");
        assert_eq!(
            at("{'a': 1}"),
            "'x.npy', byte 15: expected no keys but 'descr', 'fortran_order' and 'shape'"
        );
        assert_eq!(at("{'shape': (-1,)}"), "'x.npy', byte 21: expected the size of an axis");
        assert_eq!(at("{'shape': (1,), 'shape': (1,)}"), "'x.npy', byte 39: expected each key once");
        assert_eq!(at("{'shape': (1,)}"), "'x.npy', byte 25: expected a key 'descr'");
        assert_eq!(at("{}0"), "'x.npy', byte 12: expected nothing after the dictionary but blanks");
    }
}
