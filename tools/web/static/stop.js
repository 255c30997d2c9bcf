// The stop buttons.  A stop takes effect in the rig's loop, even if this page dies.

const UNCONFIRMED = "Unconfirmed until a state frame of the device shows that the actuators are safe.";
const buttons = { fade: document.getElementById("stop"), now: document.getElementById("stop-now") };

/** Connects both buttons; `notify(text)` shows the result. */
export function connectStops(notify) {
  for (const [how, button] of Object.entries(buttons)) {
    button.addEventListener("click", async () => {
      button.classList.add("sent");
      try {
        const answer = await fetch("api/stop", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ how }),
        });
        const body = await answer.json();
        if (answer.ok) notify(`${how === "now" ? "Disarming now" : "Stopping: the command is fading out"}. ${UNCONFIRMED}`);
        else notify(`The rig was not stopped: ${body.error}.`);
      } catch {
        button.classList.remove("sent");
        notify("The page's server does not answer. Use `onrig stop` in a terminal, Ctrl-C, or the e-stop.");
      }
    });
  }
}

let shown = "";

/** Shows the state of the actuators while the run stops, as confirmed by the device's frames. */
export function showActuators(actuators, notify) {
  if (!actuators || actuators === shown) return;
  shown = actuators;
  notify(`Stopping. Actuators ${actuators}.`);
}

/** Disables the buttons after the run. */
export function disableStops() {
  for (const button of Object.values(buttons)) button.disabled = true;
}
