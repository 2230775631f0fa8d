//! Memory that several processes share, as mapped by this process. This module contains all `unsafe` code of this
//! crate.
//!
//! There are three kinds of memory, each with its own rules: [`Paired`], which both sides write; [`Extents`], which
//! this process writes and others read; and [`Foreign`], which another process writes and this one reads. Every file is
//! sealed against a change of its size (`memfd.rs`), so that its pages do not vanish while they are mapped.

#![allow(unsafe_code)]

use super::layout::{Control, RINGS, TOTAL};
use super::{memfd, ring};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapping of a complete file, which is unmapped when this value is dropped.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: an address and a size. The three uses below decide which thread may access the memory, and how.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(file: &File, size: usize, write: bool) -> io::Result<Self> {
        let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the system chooses the address, so that nothing else is mapped over. Both lengths are from
        // this process.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, size })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the mapping, and every reference into it borrows this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// The memory of a pair of workers, which both workers write: control words and two rings.
#[derive(Debug)]
pub(crate) struct Paired(Map);

impl Paired {
    /// Maps the memory in `file`.
    ///
    /// # Errors
    /// Returns an I/O error if the file does not have [`TOTAL`] bytes, or cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != TOTAL as u64 {
            return Err(io::Error::other("it is not of a pair's size"));
        }
        Map::of(file, TOTAL, true).map(Self)
    }

    /// Returns the control words.
    pub fn control(&self) -> &Control {
        // SAFETY: they fit (checked in `layout.rs`), and a page is aligned for them. Any bytes are valid
        // words, and all of them are atomic, because the other side may change them at any time.
        unsafe { self.0.start.cast::<Control>().as_ref() }
    }

    /// Copies `bytes` to offset `at` of ring `which`.
    ///
    /// # Panics
    /// Panics if the bytes are outside the ring. Values from the other side cannot cause this.
    pub fn put(&self, which: usize, at: usize, bytes: &[u8]) {
        let to = self.ring(which, at, bytes.len());
        // SAFETY: `ring` has checked the range against the mapping, and the source is other memory. The other
        // side reads here only after it was notified. If it accesses the bytes earlier, no reference to them
        // exists, so only their values are undetermined.
        unsafe { copy_past_caches(bytes, to) };
    }

    /// Fills `into` with the bytes at offset `at` of ring `which`.
    ///
    /// # Panics
    /// Panics in the same cases as [`put`](Self::put).
    pub fn take(&self, which: usize, at: usize, into: &mut [u8]) {
        let from = self.ring(which, at, into.len());
        // SAFETY: same as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        // Only the copy is parsed. A second read of the memory could return other bytes.
        std::hint::black_box(into.as_mut_ptr());
    }

    fn ring(&self, which: usize, at: usize, length: usize) -> *mut u8 {
        assert!(which < 2 && at <= ring::CAPACITY && length <= ring::CAPACITY - at, "outside of a ring");
        // SAFETY: inside the mapping of `TOTAL` bytes, by the check above.
        unsafe { self.0.start.as_ptr().add(RINGS + which * ring::CAPACITY + at) }
    }
}

/// Memory that this process writes and others read, divided into extents of one size.
#[derive(Debug)]
pub(crate) struct Extents {
    map: Arc<Map>,
    size: usize,
}

/// The exclusive right to use a range of [`Extents`]. No two extents overlap.
#[derive(Debug)]
pub(crate) struct Extent {
    map: Arc<Map>,
    offset: usize,
    size: usize,
}

/// A part of an extent, for reading and writing. No two parts overlap.
#[derive(Debug)]
pub struct Part {
    extent: Arc<Extent>,
    /// The offset inside the extent.
    offset: usize,
    size: usize,
}

impl Extents {
    /// Creates memory of `count` extents of `size` bytes. Returns the file through which others open the memory, the
    /// memory, and its extents.
    pub fn create(count: usize, size: usize) -> io::Result<(File, Self, Vec<Extent>)> {
        let total = count.checked_mul(size).ok_or(io::ErrorKind::InvalidInput)?;
        let file = memfd::create(total as u64)?;
        let map = Arc::new(Map::of(&file, total, true)?);
        // This process has mapped it for writing once, and no other process will.
        memfd::seal_for_readers(&file)?;
        let all = (0..count).map(|at| Extent { map: map.clone(), offset: at * size, size }).collect();
        Ok((file, Self { map, size }, all))
    }

    /// Returns the address at which the memory begins. No other memory begins there while this value exists.
    pub fn start(&self) -> usize {
        self.map.start.addr().get()
    }

    /// Returns the size of each extent.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Extent {
    pub fn size(&self) -> usize {
        self.size
    }

    /// Converts the extent into a part that covers its first `size` bytes, or all bytes if there are fewer.
    pub fn open(self, size: usize) -> Part {
        let size = size.min(self.size);
        Part { extent: Arc::new(self), offset: 0, size }
    }
}

impl Part {
    /// Splits the part at `at`. This part keeps the bytes before, and the returned part contains the bytes after.
    ///
    /// # Panics
    /// Panics if `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.size, "{at} is beyond the {} bytes of a region", self.size);
        let behind = Self { extent: self.extent.clone(), offset: self.offset + at, size: self.size - at };
        self.size = at;
        behind
    }

    /// Returns the extent if this was the last of its parts, and otherwise `None`.
    pub fn close(self) -> Option<Extent> {
        Arc::into_inner(self.extent)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: inside the mapping, which the extent keeps. Parts and extents only become smaller.
        unsafe { self.extent.map.start.as_ptr().add(self.extent.offset + self.offset) }
    }
}

impl Part {
    /// Copies `bytes` to offset `at`.
    ///
    /// # Panics
    /// Panics if the bytes are outside the part.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = &mut self[at..][..bytes.len()];
        // SAFETY: `to` has that length, and belongs to this process alone.
        unsafe { copy_past_caches(bytes, to.as_mut_ptr()) };
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping, which the extent keeps, and all of it is initialised. This value alone
        // gives access to the range, because the extent that it was opened from is consumed until all parts
        // are closed. The value is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.size) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: same as above, and the value is borrowed exclusively. Other processes cannot write here.
        // They read only while this process guarantees not to change the bytes (`arena.rs`).
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.size) }
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

    /// Returns `length` bytes at an offset; `None` if they are outside the memory.
    ///
    /// The other process guarantees not to change the bytes until the loan is returned. It is a member of the job,
    /// which it has proved if the job has a secret or certificates. If it breaks the guarantee, numbers may change
    /// after they were first read, but it could also have sent those numbers. Code that parses such bytes must copy
    /// them first.
    pub fn get(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        // SAFETY: inside the mapping, by the check. The bytes are initialised, as in all files, and not
        // written, as guaranteed above.
        (end <= self.0.size)
            .then(|| unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().add(offset), length) })
    }

    /// Frees the resident pages of bytes that this process has read, if the memory is large. Only Linux does this. The
    /// other process keeps the bytes, and they can be read again.
    pub fn forget(&self, offset: usize, length: usize) {
        let end = offset.saturating_add(length).min(self.0.size) / UNIT * UNIT;
        let start = offset.next_multiple_of(UNIT);
        if self.0.size <= LARGE || start >= end {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            use rustix::mm::{Advice, madvise};
            // SAFETY: the range is inside the mapping. It is a mapping of a file, so that references into the range
            // stay valid: a later read maps the same page of the file again. It is only a hint, and may fail.
            let _ = unsafe {
                madvise(self.0.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed)
            };
        }
    }
}

/// The size in bytes above which memory of another process does not stay in this process's resident memory. Mapping it
/// again takes about a fifth of the time of reading it.
const LARGE: usize = 64 << 20;

/// A multiple of the page sizes of all systems, in bytes.
const UNIT: usize = 64 << 10;

/// The minimum length in bytes of copies that bypass the caches.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 4 << 10;

/// Copies to memory that another core has read, bypassing the caches for long copies.
///
/// Normal stores would fetch each line from the cache of that core, one after another, which takes 28 ns per line on
/// Zen 4, or 450 µs for 1 MiB. Stores that bypass the caches take 40 µs, and the data is read as fast as before.
///
/// # Safety
/// `to` must be valid for writing `bytes.len()` bytes, which do not overlap with `bytes`.
unsafe fn copy_past_caches(bytes: &[u8], to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LONG {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let (before, rest) = bytes.split_at(to.align_offset(64).min(bytes.len()));
        let (lines, after) = rest.as_chunks::<64>();
        // SAFETY: the three parts make up the whole. The stores must be aligned to 16 bytes, and the first
        // one is aligned to 64. The loads need no alignment. SSE2 is part of this architecture. The fence
        // orders later stores after these.
        unsafe {
            std::ptr::copy_nonoverlapping(before.as_ptr(), to, before.len());
            let mut at = to.add(before.len());
            for line in lines {
                for quarter in line.as_chunks::<16>().0 {
                    _mm_stream_si128(at.cast::<__m128i>(), _mm_loadu_si128(quarter.as_ptr().cast()));
                    at = at.add(16);
                }
            }
            std::ptr::copy_nonoverlapping(after.as_ptr(), at, after.len());
            _mm_sfence();
        }
        return;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
