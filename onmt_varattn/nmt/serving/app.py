"""OpenNMT-py's routes and responses as a Flask application."""

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from onmt_varattn.errors import printable
from onmt_varattn.nmt.serving.access import Access
from onmt_varattn.nmt.serving.models import Models
from onmt_varattn.nmt.serving.requests import RequestError, check_clone, check_translation

logger = logging.getLogger(__name__)

FAILED = "the server failed at this request; its log says why"
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


def build_app(
    models: Models,
    url_root: str = "/translator",
    log_requests: bool = False,
    access: Access = Access(),  # noqa: B008, it is frozen
) -> Flask:
    """Build the application.

    Args:
        models: the models served, with the limits.
        url_root: prefix of all routes.
        log_requests: log the contents of requests and responses.
        access: which clients are answered, default: those on this machine.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = models.limits.request_bytes
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False  # browsers send OPTIONS for pages of other sites
    root = "/" + url_root.strip("./")
    if log_requests:
        _add_log(app)

    @app.before_request
    def check_access() -> None:
        access.check(request.headers)
        if request.endpoint != "health":  # which only reports that the server runs
            access.check_token(request.headers)

    _add_routes(app, models, "" if root == "/" else root)
    _add_errors(app)
    app.wsgi_app = _always_answered(app.wsgi_app)  # type: ignore[assignment, method-assign]
    return app


def _always_answered(wsgi_app: Wsgi) -> Wsgi:
    """Respond to every request: Flask does not catch SystemExit, and waitress then closes the connection."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            return wsgi_app(environ, start_response)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.error("%r failed", environ.get("PATH_INFO"), exc_info=error)
            body = json.dumps({"status": "error", "error": FAILED})
            return Response(body, 500, mimetype="application/json")(environ, start_response)

    return answer


def _add_routes(app: Flask, models: Models, root: str) -> None:
    @app.get(f"{root}/models")
    def listing() -> Response:
        return jsonify(models.listing())

    @app.get(f"{root}/health")
    def health() -> Response:
        return jsonify(status="ok")

    @app.post(f"{root}/translate")
    def translate() -> Response:
        return jsonify(models.translate(check_translation(_body(), models.limits)))

    @app.post(f"{root}/clone_model/<int:model_id>")
    def clone_model(model_id: int) -> Response:
        model = models.clone(model_id, check_clone(_body()))
        return jsonify(status="ok", model_id=model.model_id, load_time=model.load_time)

    def add_action(name: str, action: Callable[[int], None]) -> None:
        def act(model_id: int) -> Response:
            _demand_json()
            action(model_id)
            return jsonify(status="ok", model_id=model_id)

        app.add_url_rule(f"{root}/{name}/<int:model_id>", name, act, methods=["POST"])

    add_action("unload_model", models.unload)
    add_action("to_cpu", models.to_cpu)
    add_action("to_gpu", models.to_gpu)


def _body() -> Any:
    """The JSON content of the request."""
    _demand_json()
    try:
        return json.loads(request.get_data())
    except (ValueError, RecursionError):  # deeply nested brackets
        raise RequestError(400, "the body of the request is not JSON") from None


def _demand_json() -> None:
    """Refuse other content types, also with an empty body: browsers send those for the page of any site."""
    if not request.is_json:
        raise RequestError(415, "send JSON, with the header 'Content-Type: application/json'")


def _add_errors(app: Flask) -> None:
    def response(code: int, message: str, headers: dict[str, str]) -> Response:
        answer = jsonify(status="error", error=message)
        answer.status_code = code
        answer.headers.update(headers)
        return answer

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        headers = error.headers if isinstance(error, RequestError) else _allowed(error)
        return response(error.code or 500, _message(error), headers)

    @app.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        logger.error("%s failed", _route(), exc_info=error)
        return response(500, FAILED, {})


def _message(error: HTTPException) -> str:
    path = request.path[:100]
    if isinstance(error, RequestError):
        return error.description or ""
    if isinstance(error, NotFound):
        return f"{path} is not a route of this server"
    if isinstance(error, MethodNotAllowed):
        allowed = _allowed(error)["Allow"]
        how = ", with the header 'Content-Type: application/json'" if allowed == "POST" else ""
        return f"{request.method} is not allowed for {path}; use {allowed}{how}"
    if isinstance(error, RequestEntityTooLarge):
        return f"the request has more than {request.max_content_length} bytes"
    return error.name.lower()


def _allowed(error: HTTPException) -> dict[str, str]:
    methods = getattr(error, "valid_methods", None) or []
    return {"Allow": ", ".join(sorted({*methods} - {"HEAD", "OPTIONS"}))} if methods else {}


def _add_log(app: Flask) -> None:
    @app.before_request
    def log_request() -> None:
        logger.info("%s %r", _route(), request.get_data())

    @app.after_request
    def log_response(response: Response) -> Response:
        logger.info("%s: %d %r", _route(), response.status_code, response.data)
        return response


def _route() -> str:
    """Method and path of the request for the log, without line breaks from the client."""
    return printable(f"{request.method} {request.path}")
