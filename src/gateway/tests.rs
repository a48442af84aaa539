//! What the gateway decides without sockets.

use std::sync::Arc;

use http::{Method, Request};

use super::{Session, check_head};
use crate::clock::Moment;
use crate::config::Config;
use crate::reason::Reason;
use crate::wire::activity::Activity;
use crate::wire::head::{HeadFault, REFUSED};

fn session() -> Session {
    let activity = Arc::new(Activity::new(Moment::from_nanos(1)));
    Session::new([127, 0, 0, 1].into(), 7, activity)
}

#[test]
fn only_targets_in_origin_form_are_taken() {
    for (target, is_taken) in [
        ("/", true),
        ("/a?b=c", true),
        ("*", false),
        ("a.example:443", false),
        ("http://u@a.example/", false),
        ("ftp://a.example/", false),
    ] {
        let request = Request::builder().uri(target).body(()).unwrap();
        let expected = match is_taken {
            true => Ok(()),
            false => Err(Reason::BadTarget.into()),
        };
        assert_eq!(check_head(&session(), &request), expected, "{target}");
    }
}

#[test]
fn a_fault_of_the_head_is_named_only_where_the_listener_found_one() {
    let method = Method::from_bytes(REFUSED.as_bytes()).unwrap();
    let request = Request::builder().method(method).uri("/").body(()).unwrap();
    let session = session();
    assert_eq!(check_head(&session, &request), Ok(()));
    session.activity.set_fault(HeadFault::BareLf);
    let refused = check_head(&session, &request);
    assert_eq!(refused, Err(HeadFault::BareLf.into()));
    let get = Request::builder().uri("/").body(()).unwrap();
    assert_eq!(check_head(&session, &get), Ok(()));
}

#[test]
fn plain_routes_obey_the_origin_or_pass_all_fields() {
    let text = "upstream.url = \"http://127.0.0.1:1\"\n\
        [[route]]\nname = \"a\"\npath = \"/a\"\ncache.mode = \"respect\"\n\
        [[route]]\nname = \"b\"\npath = \"/b\"\nheaders = \"all\"\ncache.mode = \"off\"\n\
        [[route]]\nname = \"c\"\npath = \"/c\"\ncache.mode = \"override\"\ncache.times = { 200 = \"1s\" }\n\
        [[route]]\nname = \"d\"\npath = \"/d\"\ncache.mode = \"off\"\n";
    let config = Config::parse("p", text).unwrap();
    let plain = |path| config.routes.find(path).unwrap().route.is_plain();
    assert_eq!(
        ["/a", "/b", "/c", "/d"].map(plain),
        [true, true, false, false]
    );
}
