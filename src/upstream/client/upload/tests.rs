//! How much is buffered, the minimum rate, and what is sent.

use http_body_util::StreamBody;
use tokio::sync::mpsc;

use super::*;

const LIMITS: RequestBodyLimits = RequestBodyLimits {
    buffer: 4096,
    max_buffered: 12 * 1024,
    max_buffered_per_client: 8 * 1024,
    min_rate: 100,
    grace: Duration::from_secs(10),
    timeout: Duration::from_secs(100),
    max_bytes: 20_000,
};

/// A client whose frames the test sends.
type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, BodyError>>;

fn body() -> (Sender, RequestBody) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

fn bytes(length: usize) -> Frame<Bytes> {
    Frame::data(Bytes::from(vec![b'x'; length]))
}

fn client(number: u32) -> Option<Client> {
    Some(Client::V4(number))
}

/// A body whose frames have all arrived.
fn whole(frames: Vec<Frame<Bytes>>) -> RequestBody {
    let (sender, body) = body();
    for frame in frames {
        sender.send(Ok(frame)).unwrap();
    }
    body
}

async fn receive(uploads: &Arc<Uploads>, body: RequestBody) -> Result<Upload, BodyFault> {
    uploads.receive(body, None, client(1), &LIMITS).await
}

#[tokio::test]
async fn a_body_is_buffered_up_to_the_limit_and_the_rest_streamed() {
    for (lengths, buffered, beyond, streamed) in [
        (&[][..], 0, 0, false),
        (&[5], 5, 0, false),
        (&[1000, 1000, 1000], 3000, 0, false),
        (&[4096], 4096, 0, false),
        (&[4096, 0], 4096, 0, false),
        (&[4096, 1], 4096, 1, true),
        (&[4000, 500, 9], 4096, 404, true),
        (&[9000], 4096, 4904, true),
    ] {
        let uploads = Arc::<Uploads>::default();
        let frames = lengths.iter().map(|length| bytes(*length)).collect();
        let upload = receive(&uploads, whole(frames)).await.unwrap();
        assert_eq!(upload.buffered.len(), buffered, "{lengths:?}");
        assert_eq!(upload.beyond.len(), beyond, "{lengths:?}");
        assert_eq!(upload.is_streamed(), streamed, "{lengths:?}");
        assert_eq!(upload.progress().has_ended(), !streamed, "{lengths:?}");
        let mut fields = HeaderMap::new();
        fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        upload.frame(&mut fields);
        let length = fields
            .get(CONTENT_LENGTH)
            .map(|length| length.to_str().unwrap().to_owned());
        assert_eq!(length, (!streamed).then(|| buffered.to_string()));
        assert_eq!(fields.contains_key(TRANSFER_ENCODING), streamed);
        let sent = upload.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(sent.len(), lengths.iter().sum::<usize>());
        drop(sent);
        assert_eq!(uploads.buffered(), 0, "{lengths:?}");
    }
}

#[tokio::test]
async fn a_body_with_trailers_is_sent_in_chunks() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("9"));
    let frames = vec![bytes(7), Frame::trailers(trailers.clone())];
    let upload = receive(&Arc::default(), whole(frames)).await.unwrap();
    let mut fields = HeaderMap::new();
    upload.frame(&mut fields);
    assert!(fields.is_empty());
    let sent = upload.into_body().collect().await.unwrap();
    assert_eq!(sent.trailers(), Some(&trailers));
    assert_eq!(sent.to_bytes().len(), 7);
}

#[tokio::test]
async fn buffers_are_bounded_for_each_client_and_in_total() {
    let uploads = Arc::<Uploads>::default();
    let receive =
        |number, length| uploads.receive(whole(vec![bytes(length)]), None, client(number), &LIMITS);
    let first = receive(1, 4000).await.unwrap();
    let second = receive(1, 3000).await.unwrap();
    assert_eq!(uploads.buffered(), 8192, "allocated bytes count");
    assert_eq!(
        receive(1, 1).await.err(),
        Some(BodyFault::NoRoom),
        "the bound per client"
    );
    let third = receive(2, 2049).await.unwrap();
    assert_eq!(
        receive(3, 1).await.err(),
        Some(BodyFault::NoRoom),
        "the bound for all"
    );
    assert_eq!(uploads.refused(BodyFault::NoRoom), 2);
    drop(first);
    assert!(receive(1, 1).await.is_ok() && receive(3, 1).await.is_ok());
    // Buffers count until they have been sent.
    let mut sending = second.into_body();
    let frame = sending.frame().await.unwrap().unwrap();
    drop(sending);
    assert_eq!(uploads.buffered(), 8192);
    drop((frame, third));
    assert_eq!(uploads.buffered(), 0);
    assert!(uploads.state().clients.is_empty());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_as_soon_as_that_is_known() {
    let uploads = Arc::<Uploads>::default();
    let (_silent, silent) = body();
    let declared = uploads
        .receive(silent, Some(20_001), client(1), &LIMITS)
        .await;
    assert_eq!(declared.err(), Some(BodyFault::TooLarge));
    let upload = receive(&uploads, whole(vec![bytes(5000), bytes(15_001)]))
        .await
        .unwrap();
    let progress = upload.progress().clone();
    assert!(upload.into_body().collect().await.is_err());
    assert_eq!(progress.fault(), Some(BodyFault::TooLarge));
}

#[tokio::test]
async fn a_truncated_body_is_a_fault_of_the_client() {
    for frames in [0, 2] {
        let (sender, body) = body();
        for _ in 0..frames {
            sender.send(Ok(bytes(4000))).unwrap();
        }
        sender.send(Err("malformed".into())).unwrap();
        let fault = match receive(&Arc::default(), body).await {
            Err(fault) => fault,
            Ok(upload) => {
                let progress = upload.progress().clone();
                let error = upload.into_body().collect().await.err().unwrap();
                assert_eq!(error.downcast_ref(), Some(&BodyFault::Broken));
                assert!(!progress.has_ended());
                progress.fault().unwrap()
            }
        };
        assert_eq!(fault, BodyFault::Broken);
    }
}

/// Clients that pause this many seconds, then send this many bytes, and so on; and the
/// seconds after which they are given up. The minimum rate is 100 bytes per second.
#[tokio::test(start_paused = true)]
async fn a_client_below_the_minimum_rate_is_given_up() {
    let even = [(1, 100); 50];
    let slower = [(1, 90); 80];
    let dribble = [(9, 1); 10];
    let bursts = [(9, 1000); 9];
    let long = [(1, 100); 200];
    for (what, steps, given_up) in [
        ("nothing", &[][..], Some(10)),
        ("at the rate", &even, None),
        ("a little below, within the grace period", &slower, None),
        ("a byte now and then", &dribble, Some(10)),
        ("in bursts that make up for the pauses", &bursts, None),
        ("far ahead, and then nothing", &[(0, 9000)], Some(10)),
        ("longer than any body may take", &long, Some(100)),
    ] {
        let (sender, body) = body();
        let limits = RequestBodyLimits {
            buffer: 1 << 20,
            max_buffered: 1 << 20,
            max_buffered_per_client: 1 << 20,
            ..LIMITS
        };
        let began = Instant::now();
        let steps = steps.to_vec();
        let ends = given_up.is_none();
        let sending = tokio::spawn(async move {
            for (pause, length) in steps {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                // The client may have been given up.
                let _ = sender.send(Ok(bytes(length)));
            }
            if !ends {
                std::future::pending::<()>().await;
            }
        });
        let uploads = Arc::<Uploads>::default();
        let received = uploads.receive(body, None, client(1), &limits).await;
        let expected = given_up.map(|_| BodyFault::TooSlow);
        assert_eq!(received.err(), expected, "{what}");
        if let Some(seconds) = given_up {
            assert_eq!(began.elapsed().as_secs(), seconds, "{what}");
        }
        sending.abort();
    }
}

/// A streamed body whose buffered part has been sent: its client and its progress.
async fn streamed() -> (Sender, Arc<Progress>, RequestBody) {
    let (sender, body) = body();
    sender.send(Ok(bytes(4097))).unwrap();
    let upload = receive(&Arc::default(), body).await.unwrap();
    let progress = upload.progress().clone();
    let mut sending = upload.into_body();
    for _ in 0..2 {
        assert!(sending.frame().await.unwrap().is_ok());
    }
    (sender, progress, sending)
}

/// Time in which the upstream reads nothing does not count against the client.
#[tokio::test(start_paused = true)]
async fn a_slow_upstream_does_not_count_against_the_client() {
    let (sender, progress, mut sending) = streamed().await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(30)).await;
        sender.send(Ok(bytes(1))).unwrap();
        assert!(sending.frame().await.unwrap().is_ok());
        assert!(progress.makes_progress(), "it was sent");
        assert!(!progress.makes_progress(), "nothing since");
    }
    // After the whole time of a body the upstream is not waited for any longer.
    tokio::time::advance(Duration::from_secs(11)).await;
    sender.send(Ok(bytes(1))).unwrap();
    assert!(sending.frame().await.unwrap().is_ok());
    assert!(!progress.makes_progress());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_given_up() {
    let (_sender, progress, mut sending) = streamed().await;
    let waiting = tokio::time::timeout(Duration::from_secs(5), sending.frame());
    assert!(waiting.await.is_err());
    assert!(progress.makes_progress() && progress.makes_progress());
    let error = sending.frame().await.unwrap().unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&BodyFault::TooSlow));
    assert_eq!(progress.fault(), Some(BodyFault::TooSlow));
}
