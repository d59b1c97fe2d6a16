//! Sources: reading, writing and their order.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustix::net::RecvFlags;
use weir_runtime::{Source, sleep, spawn, timeout, yield_now};

use super::{Flag, bytes, narrow_pair, pair, read, run, write};

#[test]
fn a_source_reports_bytes_and_the_end() {
    run(async {
        let (source, mut peer) = pair();
        let (said, heard) = (Flag::default(), Flag::default());
        let (asks, answers) = (said.clone(), heard.clone());
        spawn(async move {
            let mut room = [0; 16];
            asks.set();
            assert_eq!(read(&source, &mut room).await, 5);
            assert_eq!(&room[..5], b"hello");
            answers.set();
            assert_eq!(read(&source, &mut room).await, 0);
            assert!(source.is_read_closed());
            // The end persists.
            assert_eq!(read(&source, &mut room).await, 0);
            asks.set();
        });
        said.wait().await;
        peer.write_all(b"hello").unwrap();
        heard.wait().await;
        said.0.0.set(false);
        drop(peer);
        said.wait().await;
    });
}

#[test]
fn a_full_source_reports_room() {
    run(async {
        let (source, mut peer) = pair();
        let piece = [7u8; 64 << 10];
        let (mut sent, mut full) = (0usize, 0);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all.len()
        });
        while sent < 8 << 20 {
            sent += poll_fn(|cx| {
                let wrote = source.poll_write(cx, &piece);
                full += u32::from(wrote.is_pending());
                wrote
            })
            .await
            .unwrap();
        }
        drop(source);
        assert_eq!(reader.join().unwrap(), sent);
        assert!(full > 0, "it was never full");
    });
}

#[test]
fn a_reset_is_reported_while_bytes_wait() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    run(async {
        let source = Source::new(accepted.into()).unwrap();
        client.write_all(b"unread").unwrap();
        poll_fn(|cx| source.poll_readable(cx)).await;
        let notified = Flag::default();
        let notifies = notified.clone();
        spawn(async move {
            poll_fn(|cx| source.poll_write_closed(cx)).await;
            notifies.set();
        });
        yield_now().await;
        assert!(!notified.0.0.get(), "told before there was a reset");
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        notified.wait().await;
    });
}

/// The number of a removed source is reused: an event of the removed source, whose socket is still open under another
/// descriptor, is not taken for an event of the new source.
#[test]
fn events_are_not_mistaken_for_those_of_another() {
    run(async {
        for _ in 0..100 {
            let (first, mut peer) = pair();
            let _elsewhere = rustix::io::dup(&first).unwrap();
            drop(first);
            let (second, _peer) = pair();
            peer.write_all(b"x").unwrap();
            yield_now().await;
            yield_now().await;
            assert!(!second.is_readable());
        }
    });
}

/// A task that is always ready lets other tasks run, and one source of a task does not block another.
#[test]
fn a_flood_keeps_neither_the_thread_nor_its_own_task() {
    run(async {
        let ((flood, mut always), (calm, mut once)) = (pair(), pair());
        let (stop, stopped) = (Flag::default(), Rc::new(Cell::new(0)));
        let (stops, ended) = (stop.clone(), Rc::clone(&stopped));
        // As in a tunnel: one direction as long as it is ready, then the other.
        let tunnel = poll_fn(move |cx| {
            let mut most = 0;
            loop {
                // Always leaves something to read.
                always.write_all(b"xxxxxxxx").unwrap();
                if flood.poll_readable(cx).is_pending() {
                    break;
                }
                most += 1;
                assert!(most < 1000, "it keeps the thread");
                rustix::net::recv(&flood, &mut [0; 8][..], RecvFlags::empty()).unwrap();
            }
            if calm.poll_readable(cx).is_ready() {
                ended.set(most);
                stops.set();
                return Poll::Ready(());
            }
            Poll::Pending
        });
        spawn(tunnel);
        sleep(Duration::from_millis(2)).await;
        once.write_all(b"x").unwrap();
        stop.wait().await;
        assert!(stopped.get() > 0, "there was no flood");
    });
}

/// More simultaneous events than one wait returns.
#[test]
fn many_sources_are_ready_at_once() {
    run(async {
        let (left, all) = (Rc::new(Cell::new(400)), Flag::default());
        let mut peers = Vec::new();
        for _ in 0..left.get() {
            let ((source, peer), left, all) = (pair(), Rc::clone(&left), all.clone());
            peers.push(peer);
            spawn(async move {
                assert_eq!(read(&source, &mut [0; 8]).await, 1);
                left.set(left.get() - 1);
                if left.get() == 0 {
                    all.set();
                }
            });
        }
        yield_now().await;
        for peer in &mut peers {
            peer.write_all(b"x").unwrap();
        }
        all.wait().await;
    });
}

/// Short writes are sent at the end of the round even if their source is dropped, and long writes do not overtake
/// them.
#[test]
fn writes_are_sent_in_order() {
    run(async {
        let ((source, mut peer), all) = (pair(), bytes(40_000));
        let mut from = 0;
        // Short and long writes in turn, several in one round.
        for len in [1, 100, 4096, 4097, 3, 20_000, 10, 4000] {
            write(&source, &all[from..from + len]).await;
            from += len;
        }
        drop(source);
        yield_now().await;
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert!(got == all[..from], "{} of {from} bytes", got.len());
    });
}

#[test]
fn a_short_write_waits_for_the_end_of_the_round() {
    run(async {
        let (source, mut peer) = pair();
        peer.set_nonblocking(true).unwrap();
        write(&source, b"hello").await;
        let mut room = [0; 8];
        assert_eq!(peer.read(&mut room).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        yield_now().await;
        assert_eq!(peer.read(&mut room).unwrap(), 5);
        // More sources than one round serves.
        let others: Vec<_> = (0..200).map(|_| pair()).collect();
        for (source, _) in &others {
            write(source, b"x").await;
        }
        yield_now().await;
        for (_, mut peer) in others {
            assert_eq!(peer.read(&mut room).unwrap(), 1);
        }
    });
    // The last round also ends.
    let mut peer = run(async {
        let (source, peer) = pair();
        write(&source, b"bye").await;
        peer
    });
    let mut got = String::new();
    peer.read_to_string(&mut got).unwrap();
    assert_eq!(got, "bye");
}

/// Bytes without room at the end of a round are sent later, before any others; the task is woken.
#[test]
fn what_has_no_room_is_sent_later() {
    run(async {
        let (source, mut peer) = narrow_pair();
        let (all, mut sent, mut unsent) = (bytes(4 << 20), 0, false);
        // Until the socket is full; each write is short.
        while !unsent {
            let n = poll_fn(|cx| source.poll_write(cx, &all[sent..sent + 1000])).await.unwrap();
            sent += n;
            yield_now().await;
            unsent = source.has_unsent();
            assert!(sent < all.len() / 2, "there is always room");
        }
        let more = poll_fn(|cx| source.poll_write(cx, &all[sent..sent + 1000]));
        assert_eq!(timeout(Duration::from_millis(5), more).await.map(Result::ok), None, "more than there is room for");
        let shut = poll_fn(|cx| source.poll_shutdown(cx));
        assert_eq!(timeout(Duration::from_millis(5), shut).await.map(Result::ok), None, "the end before the rest");
        let expected = all[..sent + 50_000].to_vec();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            got == expected
        });
        write(&source, &all[sent..sent + 1000]).await;
        write(&source, &all[sent + 1000..sent + 50_000]).await;
        poll_fn(|cx| source.poll_shutdown(cx)).await.unwrap();
        assert!(!source.has_unsent());
        assert!(reader.join().unwrap(), "other bytes than were written");
    });
}

/// A task that waits for something else is woken when its written bytes wait for room, and when they are sent.
#[test]
fn a_waiting_task_is_woken_for_unsent_bytes() {
    run(async {
        let (source, mut peer) = narrow_pair();
        let (notified, drained) = (Flag::default(), Flag::default());
        let (notifies, notifies_drained) = (notified.clone(), drained.clone());
        spawn(async move {
            let piece = bytes(1000);
            let mut seen = false;
            poll_fn(|cx| {
                loop {
                    let unsent = source.has_unsent();
                    if unsent && !seen {
                        seen = true;
                        notifies.set();
                    }
                    if seen {
                        if unsent {
                            assert!(source.poll_readable(cx).is_pending());
                            return Poll::Pending;
                        }
                        notifies_drained.set();
                        return Poll::Ready(());
                    }
                    match source.poll_write(cx, &piece) {
                        Poll::Ready(n) => assert_eq!(n.unwrap(), 1000),
                        Poll::Pending => return Poll::Pending,
                    }
                    // Waits to read, like a connection that has answered.
                    assert!(source.poll_readable(cx).is_pending());
                    if !source.has_unsent() {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            })
            .await;
        });
        notified.wait().await;
        let reader = std::thread::spawn(move || {
            let mut got = 0;
            let mut room = [0; 65536];
            while let Ok(n @ 1..) = peer.read(&mut room) {
                got += n;
            }
            got
        });
        drained.wait().await;
        assert!(reader.join().unwrap() > 0);
    });
}

/// The error of a write that was accepted but could not be sent is returned by the next write.
#[test]
fn a_late_error_is_reported() {
    run(async {
        let (source, peer) = pair();
        drop(peer);
        write(&source, b"one").await;
        assert_eq!(source.lost_bytes(), 3);
        for _ in 0..2 {
            let next = poll_fn(|cx| source.poll_write(cx, b"two")).await;
            assert_eq!(next.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        }
    });
}

/// The kernel reports a reset once, and that report may go to a write or to a read-ahead.
#[test]
fn a_reset_is_no_orderly_end() {
    for (how, len) in [("waits", 0), ("short write", 10), ("long write", 10_000)] {
        run(async {
            let (source, peer) = narrow_pair();
            let waiting = poll_fn(|cx| source.poll_read(cx, &mut [0; 8]));
            assert!(timeout(Duration::from_millis(1), waiting).await.is_none());
            rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            drop(peer);
            if len > 0 {
                let _ = poll_fn(|cx| source.poll_write(cx, &vec![7; len])).await;
                assert!(len != 10 || source.lost_bytes() == len, "sent after a reset");
            }
            let end = poll_fn(|cx| source.poll_read(cx, &mut [0; 8])).await;
            assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "{how}");
        });
    }
}

/// Bytes read ahead that a task does not take in the round, or only in part, are neither lost nor reordered.
#[test]
fn what_is_read_ahead_is_kept() {
    run(async {
        let all = bytes(3 << 20);
        for step in [1, 100, 5000, 100_000] {
            let ((source, mut peer), total) = (pair(), (step * 3000).min(all.len()));
            let sent = all[..total].to_vec();
            let writer = std::thread::spawn(move || {
                for piece in sent.chunks(step.max(64) * 3) {
                    peer.write_all(piece).unwrap();
                }
            });
            let mut got = Vec::new();
            let mut room = vec![0; step];
            loop {
                // Waits, and lets a round pass before it reads.
                poll_fn(|cx| source.poll_read_ready(cx)).await;
                if got.len() % 3 == 0 {
                    yield_now().await;
                    assert!(source.is_readable());
                }
                match read(&source, &mut room).await {
                    0 => break,
                    n => got.extend_from_slice(&room[..n]),
                }
            }
            writer.join().unwrap();
            assert!(got == all[..total], "{step}: {} of {total} bytes", got.len());
        }
    });
}

/// Waiting for readiness alone leaves the bytes in the kernel.
#[test]
fn nothing_is_read_ahead_unasked() {
    run(async {
        let (source, mut peer) = pair();
        let notified = Flag::default();
        let notifies = notified.clone();
        spawn(async move {
            poll_fn(|cx| source.poll_readable(cx)).await;
            assert!(!source.has_unread());
            let mut room = [0; 8];
            assert_eq!(rustix::net::recv(&source, &mut room[..], RecvFlags::empty()).unwrap().0, 5);
            notifies.set();
        });
        yield_now().await;
        peer.write_all(b"hello").unwrap();
        notified.wait().await;
    });
}

/// A peer that has ended its sending side can still receive.
#[test]
fn half_closed() {
    run(async {
        let (source, mut peer) = pair();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read(&source, &mut [0; 8]).await, 0);
        assert!(source.is_read_closed());
        let polled = Rc::new(Cell::new(0));
        let counts = Rc::clone(&polled);
        let closed = poll_fn(|cx| {
            counts.set(counts.get() + 1);
            source.poll_write_closed(cx)
        });
        assert_eq!(timeout(Duration::from_millis(5), closed).await, None, "half is not whole");
        assert!(polled.get() < 5, "polled {} times", polled.get());
        rustix::net::send(&source, b"answer", rustix::net::SendFlags::NOSIGNAL).unwrap();
        let mut answer = [0; 6];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    });
}
