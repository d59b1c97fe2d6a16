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

/// The number of the future that [`block_on`] was given.
const MAIN: usize = usize::MAX;

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Everything of one thread.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) reactor: Reactor,
    pub(crate) timers: Timers,
    home: Arc<Home>,
    tasks: RefCell<Slab<Option<Task>>>,
    /// Tasks that were woken and not polled since.
    queue: RefCell<VecDeque<usize>>,
    /// Counts polls of tasks.
    pub(crate) turn: Cell<u64>,
}

/// A task; while it is polled its place is empty.
struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    header: Arc<Header>,
    waker: Waker,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header.fmt(f)
    }
}

/// What wakes a task.
#[derive(Debug)]
struct Header {
    number: usize,
    /// Whether it stands in the queue. Only the thread of the task reads and writes it.
    queued: AtomicBool,
    /// Whether it stands in the queue of other threads.
    sent: AtomicBool,
    /// Not held on to: what is woken when its thread has gone stands in no queue.
    home: Weak<Home>,
}

/// What other threads know of a thread.
#[derive(Debug)]
struct Home {
    /// Tasks that they have woken: each at most once.
    woken: SegQueue<Arc<Header>>,
    /// Whether the thread was told that there are any.
    told: AtomicBool,
    event: OwnedFd,
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = CORE.try_with(|core| match &*core.borrow() {
            Some(core) if std::ptr::eq(Arc::as_ptr(&core.home), self.home.as_ptr()) => {
                core.push(self);
                true
            }
            _ => false,
        });
        if here == Ok(true) || self.sent.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(home) = self.home.upgrade() else { return };
        home.woken.push(Arc::clone(self));
        if !home.told.swap(true, Ordering::AcqRel) {
            // It cannot fail: the counter would have to be near its end.
            let _ = rustix::io::write(&home.event, &1u64.to_ne_bytes());
        }
    }
}

/// Runs a future and the tasks that it spawns on this thread, until the future is done. Tasks that are not done by then
/// are dropped.
///
/// A panic of a task ends that task alone.
///
/// # Errors
/// The kernel gives no epoll instance, or ceases to tell events.
///
/// # Panics
/// Within itself, and when `future` does.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let core = Core::enter()?;
    let core = &*core.0;
    let header = core.header(MAIN);
    let waker = Waker::from(Arc::clone(&header));
    let mut future = pin!(future);
    core.push(&header);
    loop {
        // Timers go before sockets: one of them may move a clock on that those set their deadlines by.
        core.timers.fire();
        if core.reactor.take_events() {
            core.take_sent();
        }
        // What is woken from here on comes after the next look at the reactor.
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

/// Starts a task on this thread.
///
/// # Panics
/// Outside of [`block_on`].
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    let core = Core::here();
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
            home: Arc::new(Home { woken: SegQueue::new(), told: AtomicBool::default(), event }),
            tasks: RefCell::default(),
            queue: RefCell::default(),
            turn: Cell::new(0),
        });
        CORE.set(Some(Rc::clone(&core)));
        Ok(Entered(core))
    }

    /// That of this thread.
    pub(crate) fn here() -> Rc<Self> {
        CORE.with_borrow(Clone::clone).expect("not within weir_runtime::block_on")
    }

    fn header(&self, number: usize) -> Arc<Header> {
        let (queued, sent) = (AtomicBool::default(), AtomicBool::default());
        Arc::new(Header { number, queued, sent, home: Arc::downgrade(&self.home) })
    }

    fn push(&self, header: &Header) {
        if !header.queued.load(Ordering::Relaxed) {
            header.queued.store(true, Ordering::Relaxed);
            self.queue.borrow_mut().push_back(header.number);
        }
    }

    /// Takes what other threads have woken.
    fn take_sent(&self) {
        self.home.told.swap(false, Ordering::AcqRel);
        while let Some(header) = self.home.woken.pop() {
            header.sent.swap(false, Ordering::AcqRel);
            self.push(&header);
        }
    }

    fn poll(&self, number: usize) {
        let task = self.tasks.borrow_mut().get_mut(number).and_then(Option::take);
        // A number in the queue may be that of a task that has ended.
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

/// Makes a core that of its thread.
struct Entered(Rc<Core>);

impl Drop for Entered {
    fn drop(&mut self) {
        // What they drop may wake and even spawn others.
        loop {
            let left = self.0.tasks.take();
            if left.is_empty() {
                break;
            }
            for (_, task) in left {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            }
        }
        // Nor is what they have written lost.
        self.0.reactor.end_round();
        CORE.set(None);
    }
}
