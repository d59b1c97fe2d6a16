//! Settings of the C library's allocator that return freed memory to the system.

/// Blocks from this size on are mapped each by itself, so that they go back when they are freed and grow without a copy.
/// Larger than all that serving a request takes but for bodies that are held whole.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 256 << 10;

/// Sets the allocator up; call it before there are other threads. Left to itself the C library raises the size from
/// which on it maps blocks to that of the largest which was freed.
pub fn set_up_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes numbers and no pointer (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}

/// Gives back what the process has freed. The allocator keeps it otherwise, for as long as something lies behind it in
/// memory. Takes milliseconds for each hundred megabytes; a thread that allocates meanwhile waits.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and no pointer, and may be called from any thread at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
