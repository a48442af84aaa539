//! What the gateway decides without sockets.

use super::check_target;
use crate::config::Config;
use crate::reason::Reason;

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
        let expected = match is_taken {
            true => Ok(()),
            false => Err(Reason::BadTarget.into()),
        };
        assert_eq!(check_target(&target.parse().unwrap()), expected, "{target}");
    }
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
