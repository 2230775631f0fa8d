//! Memory that processes share, as seen by this one. All `unsafe` of this crate is here.
//!
//! Three uses, each with its own rules: [`Paired`], which both sides write; [`Part`], which this process writes and others
//! read; and [`Foreign`], which another process writes and this one reads. Every file is sealed against a change of its
//! size (`memfd.rs`), so that its pages don't vanish while they are mapped.

#![allow(unsafe_code)]

use super::layout::{Control, RINGS, TOTAL};
use super::{memfd, ring};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping of a whole file, until it is dropped.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: an address and a size. What is done with them from which thread is up to the three uses below.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(file: &File, size: usize, write: bool) -> io::Result<Self> {
        let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the system chooses where, so that nothing else is mapped over. Both lengths are this process's own.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, size })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and whoever has a reference into it holds this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// The memory of a pair of workers, which both write: control words, and two rings.
#[derive(Debug)]
pub(crate) struct Paired(Map);

impl Paired {
    /// The memory in this file, which is of [`TOTAL`] bytes for good.
    pub fn of(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != TOTAL as u64 {
            return Err(io::Error::other("it is not of a pair's size"));
        }
        Map::of(file, TOTAL, true).map(Self)
    }

    /// The control words.
    pub fn control(&self) -> &Control {
        // SAFETY: they fit (`layout.rs` sees to it), a page is aligned for them, any bytes are such words, and all of them
        // are atomic: the other side may change them at any time.
        unsafe { self.0.start.cast::<Control>().as_ref() }
    }

    /// Copies bytes into a ring.
    ///
    /// # Panics
    /// If they are not inside, which no number of the other side's can bring about.
    pub fn put(&self, which: usize, at: usize, bytes: &[u8]) {
        let to = self.ring(which, at, bytes.len());
        // SAFETY: `ring` has compared the range with the mapping; the source is another memory. The other side reads here only
        // after it is told to; should it do anything else at the same time, these are bytes, to which nobody has a
        // reference, and only what they say is undetermined.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of a ring.
    ///
    /// # Panics
    /// As [`put`](Self::put).
    pub fn take(&self, which: usize, at: usize, into: &mut [u8]) {
        let from = self.ring(which, at, into.len());
        // SAFETY: as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        // What is parsed is the copy: nothing may be read a second time, when it could be something else.
        std::hint::black_box(into.as_mut_ptr());
    }

    fn ring(&self, which: usize, at: usize, length: usize) -> *mut u8 {
        assert!(which < 2 && at <= ring::CAPACITY && length <= ring::CAPACITY - at, "outside of a ring");
        // SAFETY: inside of the mapping of `TOTAL` bytes, by the comparison.
        unsafe { self.0.start.as_ptr().add(RINGS + which * ring::CAPACITY + at) }
    }
}

/// Memory that this process writes and others read, in parts of one size.
#[derive(Debug)]
pub(crate) struct Parts {
    map: Arc<Map>,
    size: usize,
}

/// A part of such memory. No two overlap.
#[derive(Debug)]
pub(crate) struct Part {
    map: Arc<Map>,
    offset: usize,
    size: usize,
}

impl Parts {
    /// New memory, in `count` parts of `size` bytes, and the file by which others find it.
    pub fn create(count: usize, size: usize) -> io::Result<(File, Self, Vec<Part>)> {
        let total = count.checked_mul(size).ok_or(io::ErrorKind::InvalidInput)?;
        let file = memfd::create(total as u64)?;
        let map = Arc::new(Map::of(&file, total, true)?);
        // This process has it mapped for writing once, and nobody else will.
        memfd::seal_for_readers(&file)?;
        let all = (0..count).map(|at| Part { map: map.clone(), offset: at * size, size }).collect();
        Ok((file, Self { map, size }, all))
    }

    /// The address at which it begins, which is no other memory's while this value is there.
    pub fn start(&self) -> usize {
        self.map.start.addr().get()
    }

    /// The size of each part.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside of the mapping, which `map` keeps; all of it is initialised. This value alone gives access to this
        // range for writing, and it is borrowed.
        unsafe { std::slice::from_raw_parts(self.map.start.as_ptr().add(self.offset), self.size) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed exclusively. Other processes can't write here, and read only while this
        // process has promised not to change it (`arena.rs`).
        unsafe { std::slice::from_raw_parts_mut(self.map.start.as_ptr().add(self.offset), self.size) }
    }
}

/// Memory that another process writes and this one reads.
#[derive(Debug)]
pub(crate) struct Foreign(Map);

impl Foreign {
    pub fn of(file: &File, size: usize) -> io::Result<Self> {
        if file.metadata()?.len() != size as u64 {
            return Err(io::Error::other("it is of another size"));
        }
        Map::of(file, size, false).map(Self)
    }

    /// The bytes from an offset on, if they are inside.
    ///
    /// The other process has promised not to change them until they are given back. It is a member of the job, and has shown it
    /// where the job has a secret or certificates; if it breaks its promise, numbers that it could as well have sent are
    /// others than at first sight. Whoever parses such bytes has to copy them first.
    pub fn get(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        // SAFETY: inside of the mapping, by the comparison; initialised, as all files are; not written, as promised above.
        (end <= self.0.size)
            .then(|| unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().add(offset), length) })
    }
}
