//! Tasks of one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crossbeam_queue::SegQueue;
use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use slab::Slab;

use crate::reactor::Reactor;
use crate::timers::Timers;

/// Number of the future given to [`block_on`].
const MAIN: usize = usize::MAX;

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Runtime state of one thread.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) timers: Timers,
    remote: Arc<RemoteState>,
    tasks: RefCell<Slab<Option<Task>>>,
    /// Numbers of tasks that were woken and not polled since.
    queue: RefCell<VecDeque<usize>>,
    /// Number of polls of tasks so far.
    pub(crate) turn: Cell<u64>,
}

/// A task; its slot is `None` while the task is being polled.
struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    header: Arc<TaskWaker>,
    waker: Waker,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header.fmt(f)
    }
}

/// Waker of a task.
#[derive(Debug)]
struct TaskWaker {
    number: usize,
    /// True while the task is in the queue. Accessed only by the task's thread.
    queued: AtomicBool,
    /// True while the task is in the queue of other threads.
    queued_remotely: AtomicBool,
    /// Weak, since waking a task has no effect once its thread has ended.
    remote: Weak<RemoteState>,
}

/// State of a thread that other threads access.
#[derive(Debug)]
struct RemoteState {
    /// Tasks woken by other threads, each at most once.
    woken: SegQueue<Arc<TaskWaker>>,
    /// True if the event was signalled since the thread last emptied `woken`.
    is_signalled: AtomicBool,
    event: OwnedFd,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = CORE.try_with(|core| match &*core.borrow() {
            Some(core) if std::ptr::eq(Arc::as_ptr(&core.remote), self.remote.as_ptr()) => {
                core.push(self);
                true
            }
            _ => false,
        });
        if here == Ok(true) || self.queued_remotely.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(remote) = self.remote.upgrade() else { return };
        remote.woken.push(Arc::clone(self));
        if !remote.is_signalled.swap(true, Ordering::AcqRel) {
            // The write fails only if the counter is near its maximum, which it never reaches.
            let _ = rustix::io::write(&remote.event, &1u64.to_ne_bytes());
        }
    }
}

/// Runs a future and the tasks that it spawns on this thread, until the future is complete. Remaining tasks are
/// dropped.
///
/// A panic of a task ends that task only.
///
/// # Errors
/// The kernel provides no epoll instance, or waiting for events fails.
///
/// # Panics
/// Panics inside another `block_on`, and if `future` panics.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let core = Core::enter()?;
    let core = &*core.0;
    let header = core.header(MAIN);
    let waker = Waker::from(Arc::clone(&header));
    let mut future = pin!(future);
    core.push(&header);
    loop {
        // Timers fire before sockets are read: a timer may advance a clock that tasks derive their deadlines from.
        core.timers.fire();
        if core.reactor.take_events() {
            core.take_remote_wakes();
        }
        // Tasks woken from here on run after the next poll of the reactor.
        let woken = core.queue.borrow().len();
        for _ in 0..woken {
            let next = core.queue.borrow_mut().pop_front();
            core.turn.set(core.turn.get() + 1);
            match next {
                Some(MAIN) => {
                    header.queued.store(false, Ordering::Relaxed);
                    if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        return Ok(done);
                    }
                }
                Some(number) => core.poll(number),
                None => break,
            }
        }
        core.reactor.end_round();
        core.reactor.wait(if core.queue.borrow().is_empty() { core.timers.until_next() } else { Some(0) })?;
    }
}

/// Spawns a task on this thread.
///
/// # Panics
/// Panics outside of [`block_on`].
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    let core = Core::current();
    let mut tasks = core.tasks.borrow_mut();
    let place = tasks.vacant_entry();
    let header = core.header(place.key());
    core.push(&header);
    place.insert(Some(Task { future: Box::pin(future), waker: Waker::from(Arc::clone(&header)), header }));
}

impl Core {
    fn enter() -> io::Result<Entered> {
        assert!(CORE.with_borrow(Option::is_none), "block_on within block_on");
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let core = Rc::new(Self {
            reactor: Reactor::new(&event)?,
            timers: Timers::default(),
            remote: Arc::new(RemoteState { woken: SegQueue::new(), is_signalled: AtomicBool::default(), event }),
            tasks: RefCell::default(),
            queue: RefCell::default(),
            turn: Cell::new(0),
        });
        CORE.set(Some(Rc::clone(&core)));
        Ok(Entered(core))
    }

    /// State of this thread.
    pub(crate) fn current() -> Rc<Self> {
        CORE.with_borrow(Clone::clone).expect("not within weir_runtime::block_on")
    }

    fn header(&self, number: usize) -> Arc<TaskWaker> {
        let (queued, queued_remotely) = (AtomicBool::default(), AtomicBool::default());
        Arc::new(TaskWaker { number, queued, queued_remotely, remote: Arc::downgrade(&self.remote) })
    }

    fn push(&self, header: &TaskWaker) {
        if !header.queued.load(Ordering::Relaxed) {
            header.queued.store(true, Ordering::Relaxed);
            self.queue.borrow_mut().push_back(header.number);
        }
    }

    /// Queues the tasks that other threads have woken.
    fn take_remote_wakes(&self) {
        self.remote.is_signalled.swap(false, Ordering::AcqRel);
        while let Some(header) = self.remote.woken.pop() {
            header.queued_remotely.swap(false, Ordering::AcqRel);
            self.push(&header);
        }
    }

    fn poll(&self, number: usize) {
        let task = self.tasks.borrow_mut().get_mut(number).and_then(Option::take);
        // The queued number may belong to a task that has ended.
        let Some(mut task) = task else { return };
        task.header.queued.store(false, Ordering::Relaxed);
        let mut cx = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut cx)));
        if matches!(polled, Ok(Poll::Pending)) {
            if let Some(place) = self.tasks.borrow_mut().get_mut(number) {
                *place = Some(task);
            }
        } else {
            self.tasks.borrow_mut().remove(number);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        }
    }
}

/// Guard that makes a core the current one of its thread.
struct Entered(Rc<Core>);

impl Drop for Entered {
    fn drop(&mut self) {
        // Dropped tasks may wake and even spawn others.
        loop {
            let left = self.0.tasks.take();
            if left.is_empty() {
                break;
            }
            for (_, task) in left {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            }
        }
        // Bytes written by dropped tasks are queued_remotely, too.
        self.0.reactor.end_round();
        CORE.set(None);
    }
}
