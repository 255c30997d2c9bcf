/* De Bruin et al. 2018, App. A. The order of operations is that of sim/plants, so that the rounding is identical. */
#include "plant.h"

#include <math.h>

#define PI 3.141592653589793

#define MASS 5.5e-2 /* pendulum */
#define GRAVITY 9.81
#define LENGTH 4.2e-2
#define DAMPING 3e-6
#define TORQUE_CONSTANT 5.36e-2
#define RESISTANCE 9.5

#define BALL_MASS 3.2e-2 /* magnetic manipulator */
#define FRICTION 1.613e-2
#define C1 5.52e-10
#define C2 1.75e-4
#define FIRST_MAGNET 0.025
#define MAGNET_SPACING 0.025
#define MAGNETS 4
#define WALL_LOW (-0.035)
#define WALL_HIGH 0.105
#define WALL_SPEED 0.01

static double pendulum_acceleration(const struct onrig_plant *plant, const double *state, const double *action) {
    double gravity = MASS * GRAVITY * LENGTH * sin(state[0]);
    /* Without current the motor neither drives nor brakes. */
    double constant = action ? TORQUE_CONSTANT : 0.0;
    double friction = (DAMPING + constant * constant / RESISTANCE) * state[1];
    return (constant / RESISTANCE * (action ? action[0] : 0.0) - gravity - friction) / plant->inertia_kg_m2;
}

static void wrap(double *state) {
    double turned = fmod(state[0] + PI, 2.0 * PI);
    if (turned < 0.0) turned += 2.0 * PI;
    double wrapped = turned - PI;
    /* The remainder of a tiny negative number rounds up to a complete turn. */
    state[0] = wrapped < PI ? wrapped : -PI;
}

static double magman_acceleration(const struct onrig_plant *plant, const double *state, const double *action) {
    (void)plant;
    double force = -FRICTION * state[1];
    double centre = FIRST_MAGNET;
    for (int j = 0; j < MAGNETS; j++) {
        double d = state[0] - centre;
        double reach = d * d + C2;
        force = force - C1 * d / (reach * reach * reach) * (action ? action[j] : 0.0);
        centre = centre + MAGNET_SPACING;
    }
    return force / BALL_MASS;
}

static void meet_walls(double *state) {
    if (state[0] < WALL_LOW) {
        state[0] = WALL_LOW;
        state[1] = WALL_SPEED;
    } else if (state[0] > WALL_HIGH) {
        state[0] = WALL_HIGH;
        state[1] = -WALL_SPEED;
    }
}

const struct onrig_plant onrig_pendulum_plant = {9.41e-4, pendulum_acceleration, wrap};
const struct onrig_plant onrig_pendulum_hw_plant = {1.91e-4, pendulum_acceleration, wrap};
const struct onrig_plant onrig_magman_plant = {0.0, magman_acceleration, meet_walls};

static void slope(
    const struct onrig_plant *plant, const double *state, const double *action, const double *along, double h,
    double *k) {
    double at[2] = {state[0] + h * along[0], state[1] + h * along[1]};
    k[0] = at[1];
    k[1] = plant->acceleration(plant, at, action);
}

void onrig_plant_advance(
    const struct onrig_plant *plant, double *state, const double *action, double dt, unsigned substeps) {
    static const double nowhere[2] = {0.0, 0.0};
    double h = dt / substeps, half = 0.5 * h, w = h / 6.0;
    for (unsigned step = 0; step < substeps; step++) {
        double a[2], b[2], c[2], d[2];
        slope(plant, state, action, nowhere, 0.0, a);
        slope(plant, state, action, a, half, b);
        slope(plant, state, action, b, half, c);
        slope(plant, state, action, c, h, d);
        for (int i = 0; i < 2; i++) state[i] = state[i] + w * (a[i] + 2.0 * (b[i] + c[i]) + d[i]);
    }
}
