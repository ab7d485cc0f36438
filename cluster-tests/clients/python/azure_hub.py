"""Twins with azure-iot-hub and azure-iot-device, unmodified. usage: azure_hub.py HOST HTTPS_PORT SOCKETS

HOST leads to any node that lives, SOCKETS to its WebSockets at port 443, which is the only one the library can use. The
environment has the policy's key (HUB_KEY), the CA's file (HUB_CA), which REQUESTS_CA_BUNDLE names as well, and the
directory of the devices' certificates (HUB_CERTIFICATES)."""

import base64
import hashlib
import os
import queue
import ssl
import sys

from azure.iot.device import IoTHubDeviceClient, IoTHubModuleClient, X509
from azure.iot.device.exceptions import NoConnectionError
from azure.iot.hub import IoTHubRegistryManager
from azure.iot.hub.models import QuerySpecification, Twin, TwinProperties
from msrest.exceptions import HttpOperationError

from report import ask, rules, until

HOST, PORT, SOCKETS = sys.argv[1:4]
CA = open(os.environ["HUB_CA"]).read()
KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
HUB = IoTHubRegistryManager.from_connection_string(
    f"HostName={HOST}:{PORT};SharedAccessKeyName=all;SharedAccessKey={os.environ['HUB_KEY']}"
)


def status_of(call, *arguments):
    """The status with which a call is refused."""
    try:
        call(*arguments)
    except HttpOperationError as error:
        return error.response.status_code, error.response.headers["iothub-errorcode"]
    raise AssertionError("it is not refused")


def file_of(name):
    return os.path.join(os.environ["HUB_CERTIFICATES"], name)


def certificate(name):
    return X509(cert_file=file_of(f"{name}.pem"), key_file=file_of(f"{name}.key"))


def connection_string(device, module=None, host=HOST):
    part = f";ModuleId={module}" if module else ""
    return f"HostName={host};DeviceId={device}{part};SharedAccessKey={KEYS[0]}"


def connected(client):
    """A client that is connected, and the desired properties that it hears of."""
    heard = queue.Queue()
    client.on_twin_desired_properties_patch_received = heard.put
    client.connect()
    return client, heard


def hears(heard, name, value):
    """Waits for a value. After a connection the library also tells the document as it finds it."""
    while heard.get(timeout=10).get(name) != value:
        pass


def reports(client, properties, attempts):
    """Whether the library has a connection to report over."""
    attempts.append(properties)
    try:
        client.patch_twin_reported_properties(properties)
        return True
    except NoConnectionError:
        return False


def module(device="py", name="m"):
    return connected(
        IoTHubModuleClient.create_from_connection_string(
            connection_string(device, name), server_verification_cert=CA
        )
    )


def identities_are_made_and_changed():
    device = HUB.create_device_with_sas("py", *KEYS, "enabled")
    assert device.authentication.symmetric_key.primary_key == KEYS[0]
    again = status_of(HUB.create_device_with_sas, "py", *KEYS, "enabled")
    assert again == (409, "DeviceAlreadyExists"), again
    changed = HUB.update_device_with_sas("py", device.etag, *KEYS, "enabled", status_reason="known")
    assert changed.status_reason == "known" and changed.etag != device.etag
    old = status_of(HUB.update_device_with_sas, "py", device.etag, *KEYS, "enabled")
    assert old == (412, "PreconditionFailed"), old
    made = HUB.create_module_with_sas("py", "m", "me", *KEYS)
    assert made.managed_by == "me"
    assert [one.module_id for one in HUB.get_modules("py")] == ["m"]
    assert HUB.get_device("py").generation_id == device.generation_id
    assert "py" in [one.device_id for one in HUB.get_devices(100)]
    assert status_of(HUB.get_device, "absent") == (404, "DeviceNotFound")


def identities_are_deleted():
    HUB.create_device_with_sas("gone", *KEYS, "enabled")
    HUB.create_module_with_sas("gone", "m", "", *KEYS)
    HUB.delete_device("gone")
    assert status_of(HUB.get_module_twin, "gone", "m") == (404, "DeviceNotFound")


def twins_are_patched_replaced_and_guarded():
    fresh = HUB.get_twin("py")
    patched = HUB.update_twin("py", Twin(tags={"site": "43"}), fresh.etag)
    assert patched.tags == {"site": "43"} and patched.etag != fresh.etag
    old = status_of(HUB.update_twin, "py", Twin(tags={"site": "44"}), fresh.etag)
    assert old == (412, "PreconditionFailed"), old
    properties = TwinProperties(desired={"mode": "eco"})
    replaced = HUB.replace_twin("py", Twin(properties=properties), patched.etag)
    assert replaced.properties.desired["mode"] == "eco" and replaced.tags == {"site": "43"}


def twins_are_found_page_by_page():
    for number in range(5):
        HUB.create_device_with_sas(f"page-{number}", *KEYS, "enabled")
        HUB.update_twin(f"page-{number}", Twin(tags={"page": number}))
    found, token = [], None
    query = QuerySpecification(query="SELECT * FROM devices WHERE tags.page >= 1")
    while True:
        page = HUB.query_iot_hub(query, token, 2)
        assert page.type == "Twin"
        found += [one.device_id for one in page.items]
        token = page.continuation_token
        if token is None:
            break
    assert found == [f"page-{number}" for number in range(1, 5)], found


def a_device_reports_and_hears():
    client, heard = connected(
        IoTHubDeviceClient.create_from_connection_string(connection_string("py"), server_verification_cert=CA)
    )
    twin = client.get_twin()
    assert twin["desired"]["mode"] == "eco" and "$metadata" not in twin["desired"]
    client.patch_twin_reported_properties({"mode": "eco"})
    assert HUB.get_twin("py").properties.reported["mode"] == "eco"
    HUB.update_twin("py", Twin(properties=TwinProperties(desired={"mode": "full"})))
    hears(heard, "mode", "full")
    until("the connection state", lambda: HUB.get_twin("py").connection_state == "Connected")
    client.shutdown()
    until("the connection state", lambda: HUB.get_twin("py").connection_state == "Disconnected")


def goes_on(client, heard, desire, reported):
    """The node of a client dies. A subscription is made once in the life of a client."""
    client.patch_twin_reported_properties({"number": 0})
    desire({"number": 0})
    hears(heard, "number", 0)
    ask("kill", 0)
    # Until the library has noticed, it is connected to a node that is dead. What it refuses then waits in its MQTT
    # client all the same, and is sent as well.
    attempts = []
    until("the connection", lambda: client.connected and reports(client, {"number": 1}, attempts), within=60)
    found = reported()
    assert (found["number"], found["$version"]) == (1, 2 + len(attempts)), (found, attempts)
    desire({"number": 1})
    hears(heard, "number", 1)
    ask("start", 0)
    client.shutdown()


def a_module_goes_on_when_its_node_dies():
    goes_on(
        *module(),
        lambda desired: HUB.update_module_twin("py", "m", Twin(properties=TwinProperties(desired=desired))),
        lambda: HUB.get_module_twin("py", "m").properties.reported,
    )


def device_goes_on(device, client):
    goes_on(
        *connected(client),
        lambda desired: HUB.update_twin(device, Twin(properties=TwinProperties(desired=desired))),
        lambda: HUB.get_twin(device).properties.reported,
    )


def a_device_shows_its_own_certificate():
    certificate_bytes = ssl.PEM_cert_to_DER_cert(open(file_of("own.pem")).read())
    thumbprints = [hashlib.sha1(certificate_bytes).hexdigest(), "0" * 40]
    HUB.create_device_with_x509("py-own", *thumbprints, "enabled")
    client = IoTHubDeviceClient.create_from_x509_certificate(
        certificate("own"), HOST, "py-own", server_verification_cert=CA
    )
    device_goes_on("py-own", client)


def a_device_shows_a_certificate_of_the_ca_over_websocket():
    HUB.create_device_with_certificate_authority("py-ca", "enabled")
    client = IoTHubDeviceClient.create_from_x509_certificate(
        certificate("client-py-ca"), SOCKETS, "py-ca", server_verification_cert=CA, websockets=True
    )
    device_goes_on("py-ca", client)


def a_device_speaks_over_websocket():
    HUB.create_device_with_sas("py-ws", *KEYS, "enabled")
    client = IoTHubDeviceClient.create_from_connection_string(
        connection_string("py-ws", host=SOCKETS), server_verification_cert=CA, websockets=True
    )
    device_goes_on("py-ws", client)


rules(
    identities_are_made_and_changed,
    identities_are_deleted,
    twins_are_patched_replaced_and_guarded,
    twins_are_found_page_by_page,
    a_device_reports_and_hears,
    a_module_goes_on_when_its_node_dies,
    a_device_shows_its_own_certificate,
    a_device_shows_a_certificate_of_the_ca_over_websocket,
    a_device_speaks_over_websocket,
)
