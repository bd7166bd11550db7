//! HTTP requests between a client and its server, some of them refused.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::RETRY_AFTER;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::{Link, count, pump};

/// Bytes between the pump and the parser.
const PIPE: usize = 64 * 1024;
/// What a refusal says. No API words its errors so: it is a gateway that speaks.
const SAID: &str = "<html><body><h1>the gateway is out of order</h1></body></html>";

type Body = BoxBody<Bytes, hyper::Error>;

/// The connection to the server that a client's requests go through one after the other, with the
/// task that drives it.
#[derive(Default)]
struct Server {
    sender: Option<SendRequest<Incoming>>,
    drivers: JoinSet<()>,
}

/// Serves `client`: its bytes go through the pump, its requests through the gateway.
pub(super) async fn relay(client: TcpStream, link: Arc<Link>) {
    let (outer, inner) = tokio::io::duplex(PIPE);
    let server = Mutex::new(Server::default());
    let gateway = service_fn(|request| answer(request, &link, &server));
    let serve = http1::Builder::new().serve_connection(TokioIo::new(inner), gateway);
    tokio::select! {
        () = pump::run(client, outer, &link) => {}
        // The pump passes an orderly end on. Where the server broke off, so does this: the
        // connection is dropped with what was not pumped yet.
        Err(_) = serve => {}
    }
}

/// One request's way.
///
/// # Errors
///
/// When the server is not there or breaks off: the client's connection then breaks off too.
async fn answer(
    request: Request<Incoming>,
    link: &Link,
    server: &Mutex<Server>,
) -> io::Result<Response<Body>> {
    let faults = link.faults();
    if link.draw(faults.refused_before) {
        count(&link.refused_before);
        drain(request.into_body()).await?;
        return Ok(refusal(link));
    }
    let response = forward(request, link, server).await?;
    if link.draw(faults.refused_after) {
        count(&link.refused_after);
        drain(response.into_body()).await?;
        return Ok(refusal(link));
    }
    Ok(response.map(BodyExt::boxed))
}

async fn forward(
    request: Request<Incoming>,
    link: &Link,
    server: &Mutex<Server>,
) -> io::Result<Response<Incoming>> {
    let mut server = server.lock().await;
    let usable = match &mut server.sender {
        Some(sender) => sender.ready().await.is_ok(),
        None => false,
    };
    if !usable {
        let socket = TcpStream::connect(link.upstream).await?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(broken)?;
        server.drivers.spawn(async move {
            // Its end shows at the request that it was serving.
            let _ = connection.await;
        });
        server.sender = Some(sender);
    }
    let Some(sender) = &mut server.sender else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    sender.send_request(request).await.map_err(broken)
}

/// Reads a body to its end, as one who answers only then.
async fn drain(mut body: Incoming) -> io::Result<()> {
    while let Some(frame) = body.frame().await {
        frame.map_err(broken)?;
    }
    Ok(())
}

/// What gateways answer when they are out of order or asked too much.
fn refusal(link: &Link) -> Response<Body> {
    let (status, patience) = link.dice(|dice| {
        let status = [
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::TOO_MANY_REQUESTS,
        ][dice.usize(0..3)];
        (status, dice.bool())
    });
    let never = |impossible: Infallible| -> hyper::Error { match impossible {} };
    let mut response = Response::new(Full::from(SAID).map_err(never).boxed());
    *response.status_mut() = status;
    if patience && status != StatusCode::INTERNAL_SERVER_ERROR {
        let second = hyper::header::HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, second);
    }
    response
}

fn broken(error: hyper::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, error)
}
