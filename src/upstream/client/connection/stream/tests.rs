//! Connections over real sockets, to a server that does as the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;
use crate::clock::Moment;
use crate::upstream::endpoint::given_up::{GivenUpRequest, Gone};

/// How long anything may take before it counts as a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection.
async fn pair() -> (Watched<TcpStream>, Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(to), listener.accept());
    let watched = Watched::new(client.unwrap());
    let connection = watched.connection.clone();
    (watched, connection, server.unwrap().0)
}

/// A request that was given up, and what is told of it.
fn late() -> (Arc<GivenUpRequest>, oneshot::Receiver<Gone>) {
    let (tell, told) = oneshot::channel();
    let late = GivenUpRequest::new(Moment::default(), move |how| {
        let _ = tell.send(how);
    });
    (late, told)
}

async fn told(told: oneshot::Receiver<Gone>) -> Gone {
    let told = timeout(PATIENCE, told).await;
    told.expect("it is told").expect("and not dropped")
}

/// Reads to the end, or until a failure.
async fn drained(server: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _reset = timeout(PATIENCE, server.read_to_end(&mut all))
        .await
        .unwrap();
    all
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_a_request_until_it_closes() {
    let (mut watched, connection, mut server) = pair().await;
    watched.write_all(b"a request").await.unwrap();
    let (late, mut tells) = late();
    connection.tell(late);
    drop(watched);
    // It is closed from here, and the server can still read it all, then the end.
    let look = timeout(3 * LOOK, &mut tells).await;
    assert!(look.is_err(), "it may still arrive: {look:?}");
    assert_eq!(drained(&mut server).await, b"a request");
    drop(server);
    assert_eq!(told(tells).await, Gone::Ended);
    assert!(connection.has_ended());
}

#[tokio::test]
async fn one_that_is_given_up_after_its_connection_was_dropped_is_told_as_well() {
    let (watched, connection, server) = pair().await;
    drop(watched);
    let (late, tells) = late();
    connection.tell(late);
    drop(server);
    assert_eq!(told(tells).await, Gone::Ended);
    let (late, mut tells) = self::late();
    connection.tell(late);
    assert_eq!(tells.try_recv(), Ok(Gone::Ended), "and at once then");
}

#[tokio::test]
async fn a_server_that_is_killed_ends_all_that_it_has_not_read() {
    let (mut watched, connection, server) = pair().await;
    watched.write_all(b"a request").await.unwrap();
    let all = [(); 3].map(|()| late());
    let mut tells = Vec::new();
    for (late, tell) in all {
        connection.tell(late);
        tells.push(tell);
    }
    drop(watched);
    SockRef::from(&server)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(server);
    for tell in tells {
        assert_eq!(told(tell).await, Gone::Ended);
    }
}

/// A request that was sent lies in the receive queue after the client has closed or
/// even reset the connection: neither takes it back.
#[tokio::test]
async fn neither_a_close_nor_a_reset_takes_back_what_was_sent() {
    for reset in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client.write_all(b"a request").await.unwrap();
        if reset {
            SockRef::from(&client)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
        drop(client);
        // Only now does the server look.
        let (mut server, _) = listener.accept().await.unwrap();
        assert_eq!(drained(&mut server).await, b"a request", "reset: {reset}");
    }
}

#[tokio::test]
async fn a_connection_that_nobody_waits_for_is_closed_soon() {
    let (watched, connection, mut server) = pair().await;
    drop(watched);
    assert_eq!(drained(&mut server).await, b"", "closed from here");
    // It is closed for reading as well: what is written now is reset.
    let closed = async {
        while server.write_all(&[0; 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, closed)
        .await
        .expect("no descriptor stays");
    let (late, mut tells) = late();
    connection.tell(late);
    assert_eq!(tells.try_recv(), Ok(Gone::Soon), "nobody sees it end");
}

#[tokio::test]
async fn one_that_has_arrived_by_other_evidence_is_waited_for_no_more() {
    let (watched, connection, mut server) = pair().await;
    let (late, tells) = late();
    connection.tell(late.clone());
    drop(watched);
    late.gone(Gone::Soon);
    assert_eq!(told(tells).await, Gone::Soon);
    let closed = async {
        while server.write_all(&[0; 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, closed)
        .await
        .expect("no descriptor stays");
}

#[tokio::test]
async fn a_server_that_goes_on_sending_has_read_the_request() {
    let (watched, connection, mut server) = pair().await;
    let (late, tells) = late();
    connection.tell(late);
    drop(watched);
    let piece = vec![0; 256 * 1024];
    let endless = async { while server.write_all(&piece).await.is_ok() {} };
    timeout(PATIENCE, endless).await.expect("it is cut off");
    assert_eq!(told(tells).await, Gone::Soon);
}

/// A regression: a client that broke large answers off had each of them sent on,
/// up to 64 MiB.
#[tokio::test]
async fn what_nobody_waits_for_is_not_read_on() {
    let (watched, _, mut server) = pair().await;
    drop(watched);
    let piece = vec![0; 64 * 1024];
    let mut sent = 0;
    let sends = async {
        while server.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
    };
    timeout(PATIENCE, sends).await.expect("it is closed");
    // Beside that, what the sockets' buffers hold.
    assert!(sent <= 16 * 1024 * 1024, "{sent}");
}

#[tokio::test]
async fn a_connection_that_goes_on_keeps_no_list_of_what_is_over() {
    let (_watched, connection, _server) = pair().await;
    for _ in 0..1000 {
        let (late, _tells) = late();
        connection.tell(late.clone());
        late.gone(Gone::Soon);
    }
    assert!(connection.late().len() <= 1, "one at the most");
}

#[test]
fn what_a_runtime_leaves_undone_is_told_as_well() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    // One whose task was not run to its end, and one that never had a task.
    for with_task in [true, false] {
        let (first, tells) = (runtime(), late());
        let (watched, connection, _server) = first.block_on(pair());
        connection.tell(tells.0);
        match with_task {
            true => {
                first.block_on(async { drop(watched) });
                drop(first);
            }
            false => drop(watched),
        }
        assert_eq!(runtime().block_on(told(tells.1)), Gone::Soon, "{with_task}");
    }
}

#[tokio::test]
async fn a_machine_that_is_gone_is_noticed_by_what_it_does_not_acknowledge() {
    let user_timeout = |watched: &Watched<TcpStream>| {
        let socket = SockRef::from(watched.inner.as_ref().unwrap())
            .try_clone()
            .unwrap();
        move || socket.tcp_user_timeout().unwrap().unwrap_or_default()
    };
    let (mut watched, _, _server) = pair().await;
    watched.write_all(&[0; FITS]).await.unwrap();
    let small = user_timeout(&watched);
    assert_eq!(small(), Duration::ZERO, "as long as it is used");
    drop(watched);
    assert_eq!(small(), UNACKNOWLEDGED);
    // A receive buffer that is full is not acknowledged either, and there may be a
    // request in it.
    let (mut watched, _, _server) = pair().await;
    watched.write_all(&[0; FITS + 1]).await.unwrap();
    let large = user_timeout(&watched);
    drop(watched);
    assert_eq!(large(), Duration::ZERO);
}

#[test]
fn only_the_first_to_say_so_is_heard() {
    let times = Arc::new(AtomicU32::new(0));
    let heard = times.clone();
    let late = GivenUpRequest::new(Moment::default(), move |_how| {
        heard.fetch_add(1, SeqCst);
    });
    assert!(!late.is_over());
    late.gone(Gone::Ended);
    late.gone(Gone::Soon);
    assert!(late.is_over());
    assert_eq!(times.load(SeqCst), 1);
}
