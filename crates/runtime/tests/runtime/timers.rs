//! Timers.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use weir_runtime::{now_us, sleep, spawn, timeout, yield_now};

use super::{Flag, LONG, pair, read, run};

#[test]
fn timers_fire_and_not_early() {
    run(async {
        let (left, all) = (Rc::new(Cell::new(5)), Flag::default());
        for ms in [30u64, 10, 20, 0, 10] {
            let (left, all) = (Rc::clone(&left), all.clone());
            spawn(async move {
                let begin = now_us();
                sleep(Duration::from_millis(ms)).await;
                assert!(now_us() - begin >= ms * 1000, "{ms} ms were over after {} µs", now_us() - begin);
                left.set(left.get() - 1);
                if left.get() == 0 {
                    all.set();
                }
            });
        }
        all.wait().await;
    });
}

/// Tasks woken by a socket see the effects of timers that are due, such as an advanced clock.
#[test]
fn timers_go_before_sockets() {
    run(async {
        let (source, mut peer) = pair();
        let order = Rc::new(RefCell::new(Vec::new()));
        let (first, second) = (Rc::clone(&order), Rc::clone(&order));
        spawn(async move {
            read(&source, &mut [0]).await;
            first.borrow_mut().push("socket");
        });
        spawn(async move {
            sleep(Duration::from_millis(10)).await;
            second.borrow_mut().push("timer");
        });
        // Both tasks wait.
        yield_now().await;
        // The thread is blocked while both become due.
        peer.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(30));
        while order.borrow().len() < 2 {
            yield_now().await;
        }
        assert_eq!(*order.borrow(), ["timer", "socket"]);
    });
}

#[test]
fn a_time_limit() {
    run(async {
        assert_eq!(timeout(Duration::from_millis(1), sleep(LONG)).await, None);
        assert_eq!(timeout(LONG, async { 5 }).await, Some(5));
        // The longest possible limit neither overflows nor fires.
        assert_eq!(
            timeout(Duration::MAX, async {
                yield_now().await;
                6
            })
            .await,
            Some(6)
        );
    });
}
