//! Memory that processes share, as seen by this one. All `unsafe` of this crate is here.
//!
//! Three uses, each with its own rules: [`Paired`], which both sides write; [`Extents`], which this process writes and others
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
        unsafe { copy_past_caches(bytes, to) };
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

/// Memory that this process writes and others read, in extents of one size.
#[derive(Debug)]
pub(crate) struct Extents {
    map: Arc<Map>,
    size: usize,
}

/// The right to a range of such memory. No two overlap.
#[derive(Debug)]
pub(crate) struct Extent {
    map: Arc<Map>,
    offset: usize,
    size: usize,
}

/// A part of an extent, to be read and written. No two overlap.
#[derive(Debug)]
pub struct Part {
    extent: Arc<Extent>,
    /// Inside of the extent.
    offset: usize,
    size: usize,
}

impl Extents {
    /// New memory, in `count` extents of `size` bytes, and the file by which others find it.
    pub fn create(count: usize, size: usize) -> io::Result<(File, Self, Vec<Extent>)> {
        let total = count.checked_mul(size).ok_or(io::ErrorKind::InvalidInput)?;
        let file = memfd::create(total as u64)?;
        let map = Arc::new(Map::of(&file, total, true)?);
        // This process has it mapped for writing once, and nobody else will.
        memfd::seal_for_readers(&file)?;
        let all = (0..count).map(|at| Extent { map: map.clone(), offset: at * size, size }).collect();
        Ok((file, Self { map, size }, all))
    }

    /// The address at which it begins, which is no other memory's while this value is there.
    pub fn start(&self) -> usize {
        self.map.start.addr().get()
    }

    /// The size of each extent.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Extent {
    pub fn size(&self) -> usize {
        self.size
    }

    /// Access to its first `size` bytes, or as many as it has.
    pub fn open(self, size: usize) -> Part {
        let size = size.min(self.size);
        Part { extent: Arc::new(self), offset: 0, size }
    }
}

impl Part {
    /// Parts with what is before `at` and what is behind it, which this one then ends at.
    ///
    /// # Panics
    /// If it is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.size, "{at} is beyond the {} bytes of a region", self.size);
        let behind = Self { extent: self.extent.clone(), offset: self.offset + at, size: self.size - at };
        self.size = at;
        behind
    }

    /// The right to the extent, if this was the last of its parts.
    pub fn close(self) -> Option<Extent> {
        Arc::into_inner(self.extent)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: inside of the mapping, which the extent keeps: parts and extents are made smaller only.
        unsafe { self.extent.map.start.as_ptr().add(self.extent.offset + self.offset) }
    }
}

impl Part {
    /// Copies bytes to `at`.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = &mut self[at..][..bytes.len()];
        // SAFETY: `to` is of that length, and this process's own.
        unsafe { copy_past_caches(bytes, to.as_mut_ptr()) };
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside of the mapping, which the extent keeps; all of it is initialised. This value alone gives access to this
        // range, since the extent it was opened from is consumed until all parts are closed, and it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(), self.size) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed exclusively. Other processes can't write here, and read only while this
        // process has promised not to change it (`arena.rs`).
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

/// From this length on, copies go past the caches.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 4 << 10;

/// Copies to memory that another core has read. A store would have to take each line back from the cache of that core, one after
/// another: 28 ns a line on Zen 4, or 450 µs for 1 MiB. Past the caches it is 40 µs, and is read as fast as before.
///
/// # Safety
/// `to` is valid for writing `bytes.len()` bytes, which don't overlap with `bytes`.
unsafe fn copy_past_caches(bytes: &[u8], to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LONG {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let (before, rest) = bytes.split_at(to.align_offset(64).min(bytes.len()));
        let (lines, after) = rest.as_chunks::<64>();
        // SAFETY: the three pieces make up the whole. The stores are aligned to 16 bytes, as they have to be, since their first is
        // to 64; the loads need not be. SSE2 is a part of this architecture. The fence lets no later store be seen before these.
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
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
