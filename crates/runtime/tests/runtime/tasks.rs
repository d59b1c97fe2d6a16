//! Tasks, and wake-ups from other threads.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use weir_runtime::{block_on, sleep, spawn, yield_now};

use super::{Flag, LONG, pair, read, run};

#[test]
fn tasks_wake_each_other() {
    let order = run(async {
        let (first, second) = (Flag::default(), Flag::default());
        let order = Rc::new(RefCell::new(Vec::new()));
        let (a, b, log) = (first.clone(), second.clone(), Rc::clone(&order));
        spawn(async move {
            a.wait().await;
            log.borrow_mut().push(1);
            b.set();
        });
        order.borrow_mut().push(0);
        yield_now().await;
        first.set();
        second.wait().await;
        order.take()
    });
    assert_eq!(order, [0, 1]);
}

#[test]
fn a_task_spawns_tasks() {
    let done = run(async {
        let (count, all) = (Rc::new(Cell::new(0)), Flag::default());
        for _ in 0..100 {
            let (count, all) = (Rc::clone(&count), all.clone());
            spawn(async move {
                spawn(async move {
                    yield_now().await;
                    count.set(count.get() + 1);
                    if count.get() == 100 {
                        all.set();
                    }
                });
            });
        }
        all.wait().await;
        count.get()
    });
    assert_eq!(done, 100);
}

#[test]
fn a_panic_ends_one_task() {
    struct Dropped(Flag);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set();
        }
    }
    run(async {
        let (gone, served) = (Flag::default(), Flag::default());
        let (guard, other) = (Dropped(gone.clone()), served.clone());
        spawn(async move {
            let _guard = guard;
            yield_now().await;
            panic!("meant to");
        });
        spawn(async move {
            yield_now().await;
            yield_now().await;
            other.set();
        });
        gone.wait().await;
        served.wait().await;
    });
}

#[test]
fn what_is_left_is_dropped_at_the_end() {
    struct Counted(Rc<Cell<u32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    run(async {
        for _ in 0..10 {
            let (guard, (source, _peer)) = (Counted(Rc::clone(&dropped)), pair());
            spawn(async move {
                let _guard = guard;
                read(&source, &mut [0; 8]).await;
            });
        }
        yield_now().await;
    });
    assert_eq!(dropped.get(), 10);
    // The thread can run another future afterwards, also after a panic.
    assert!(catch_unwind(AssertUnwindSafe(|| run(async { panic!("meant to") }))).is_err());
    assert_eq!(run(async { 7 }), 7);
}

/// Without a timer, only the wake-up ends the wait.
#[test]
fn another_thread_ends_a_wait_without_end() {
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Waker>(1);
    let waking = std::thread::spawn(move || {
        let waker = receiver.recv().unwrap();
        // The wait has most likely begun by then; it has to end in any case.
        std::thread::sleep(Duration::from_millis(5));
        waker.wake();
    });
    let mut polled = 0;
    block_on(poll_fn(|cx| {
        polled += 1;
        if polled == 1 {
            sender.send(cx.waker().clone()).unwrap();
            return Poll::Pending;
        }
        Poll::Ready(())
    }))
    .unwrap();
    waking.join().unwrap();
    assert_eq!(polled, 2);
}

/// Destructors at the end may spawn, wake and panic.
#[test]
fn the_end_is_orderly_whatever_happens() {
    struct Last(Flag, Rc<Cell<u32>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.set();
            let dropped = Rc::clone(&self.1);
            dropped.set(dropped.get() + 1);
            if dropped.get() < 10 {
                let next = Last(self.0.clone(), dropped);
                spawn(async move {
                    let _next = next;
                    std::future::pending::<()>().await;
                });
            }
            assert!(!self.1.get().is_multiple_of(3), "meant to");
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let (kept, late, waker) = run(async {
        let (flag, source) = (Flag::default(), pair());
        let waits = flag.clone();
        spawn(async move { waits.wait().await });
        let (held, late) = (Rc::new(source), Rc::new(RefCell::new(Box::pin(sleep(LONG)))));
        let (holds, last, waits) = (Rc::clone(&held), Last(flag, Rc::clone(&dropped)), Rc::clone(&late));
        spawn(async move {
            let (_holds, _last) = (holds, last);
            poll_fn(|cx| waits.borrow_mut().as_mut().poll(cx)).await;
        });
        yield_now().await;
        (held, late, poll_fn(|cx| Poll::Ready(cx.waker().clone())).await)
    });
    assert_eq!(dropped.get(), 10);
    // These outlive the runtime.
    drop((kept, late));
    waker.wake();
}

#[test]
fn one_within_another_is_refused_and_does_no_harm() {
    run(async {
        let inner = catch_unwind(AssertUnwindSafe(|| block_on(async {})));
        assert!(inner.is_err());
        let done = Flag::default();
        let notifies = done.clone();
        spawn(async move { notifies.set() });
        done.wait().await;
    });
}

/// Wake-ups from other threads are neither lost nor do they accumulate.
#[test]
fn other_threads_wake_tasks() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 5_000;
    struct Shared {
        count: AtomicUsize,
        wakers: [std::sync::OnceLock<Waker>; 3],
    }
    let shared = Arc::new(Shared { count: AtomicUsize::new(0), wakers: Default::default() });
    run(async {
        let all = Rc::new(Cell::new(0));
        let done = Flag::default();
        for task in 0..3 {
            let (shared, all, done) = (Arc::clone(&shared), Rc::clone(&all), done.clone());
            spawn(async move {
                poll_fn(|cx| {
                    shared.wakers[task].get_or_init(|| cx.waker().clone());
                    if shared.count.load(Ordering::SeqCst) == THREADS * ROUNDS {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
                all.set(all.get() + 1);
                if all.get() == 3 {
                    done.set();
                }
            });
        }
        yield_now().await;
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    shared.count.fetch_add(1, Ordering::SeqCst);
                    for waker in &shared.wakers {
                        waker.get().expect("the task has run").wake_by_ref();
                    }
                }
            });
        }
        done.wait().await;
    });
    // The thread has ended, so the wake-up has no effect.
    shared.wakers[0].get().expect("the task has run").wake_by_ref();
}

/// A future that is polled with a new waker is woken through the new one.
#[test]
fn the_last_waker_counts() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    run(async {
        let counts = [Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0)))];
        let (source, mut peer) = pair();
        let mut late = Box::pin(sleep(Duration::from_millis(500)));
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            let mut cx = Context::from_waker(&waker);
            assert!(source.poll_readable(&mut cx).is_pending());
            assert!(Pin::new(&mut late).poll(&mut cx).is_pending());
        }
        peer.write_all(b"x").unwrap();
        while counts[1].0.load(Ordering::Relaxed) < 2 {
            yield_now().await;
        }
        assert_eq!(counts[0].0.load(Ordering::Relaxed), 0);
    });
}
